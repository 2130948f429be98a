// Claim: other results of an optimizer have the bits of the committed list: votes and steps by them, directions, files,
// shards, mixed groups, imported state, seeds. golden.h says how the list is written.
#include "golden/cases.h"
#include "support/checkpoint_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// Rows of a value for each state format.
struct Results {
  GoldenTable table{codec_names(), {}};

  void add(const std::string& row, const std::function<void(GoldenHash&, const std::string& format)>& make) {
    std::vector<std::string>& values = table.rows.emplace_back(row, std::vector<std::string>()).second;
    for (const std::string& format : table.columns) {
      GoldenHash hash;
      try {
        make(hash, format);
        values.push_back(hash.text());
      } catch (const Error&) {
        values.push_back("-");
      }
    }
  }
};

GroupOptions group_of(const GoldenRule& rule, const std::string& format) {
  GroupOptions group{.hyper = rule.hyper, .state = format, .min_quantized_numel = 100, .rule = rule.rule};
  return group;
}

// Parameters of three shapes and their gradients, of one type.
struct Model {
  std::vector<GoldenTensor> params, grads;

  explicit Model(DType dtype, uint64_t seed = 0) {
    const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> shapes = {
        {{10, 602}, {}}, {{7, 151}, {1, 7}}, {{9}, {}}};
    for (const auto& [sizes, strides] : shapes) {
      const uint64_t from = seed + 10 * params.size();
      params.emplace_back(dtype, sizes, strides, 3 + from, -6, 0);
      for (uint64_t step = 0; step < 3; ++step)
        grads.emplace_back(dtype, sizes, std::vector<int64_t>{}, 4 + from + 100 * step, -9, 0, 0.05);
    }
  }
  void add_to(Optimizer& optimizer, int group) {
    for (GoldenTensor& param : params) optimizer.add_param(group, param.view());
  }
  std::vector<Gradient> gradients(size_t step) const {
    std::vector<Gradient> out;
    for (size_t i = 0; i < params.size(); ++i) out.push_back(grads[3 * i + step].gradient());
    return out;
  }
  void add_to(GoldenHash& hash, const Optimizer& optimizer, int64_t first = 0) const {
    for (size_t i = 0; i < params.size(); ++i) {
      hash.add(params[i].data);
      add_state(hash, optimizer, first + static_cast<int64_t>(i));
    }
  }
};

void add_votes(Results& results, const OptimizerOptions& options) {
  for (const GoldenRule& rule : golden_rules())
    for (const DType dtype : kGoldenTypes)
      results.add("votes " + rule.name + " " + short_name(dtype), [&](GoldenHash& hash, const std::string& format) {
        Model model(dtype);
        Optimizer optimizer(options);
        model.add_to(optimizer, optimizer.add_group(group_of(rule, format)));
        std::vector<std::byte> bits(static_cast<size_t>(optimizer.sign_count() / 8)), presence(bits.size() / 64);
        for (size_t step = 0; step < 3; ++step) {
          optimizer.ballots(model.gradients(step), {bits.data(), presence.data(), nullptr}, step != 1);
          optimizer.apply_signs({bits.data(), presence.data(), nullptr});
          hash.add(bits), hash.add(presence);
        }
        model.add_to(hash, optimizer);
      });
}

void add_directions(Results& results, const OptimizerOptions& options) {
  for (const GoldenRule& rule : golden_rules())
    results.add("directions " + rule.name, [&](GoldenHash& hash, const std::string& format) {
      Model model(DType::kBF16);
      Optimizer optimizer(options);
      model.add_to(optimizer, optimizer.add_group(group_of(rule, format)));
      std::vector<float> direction(6020), strided(1057);
      float* const to[] = {direction.data(), strided.data(), nullptr};
      StepOptions how{.directions = to};
      for (size_t step = 0; step < 3; ++step) {
        optimizer.step(model.gradients(step), how);
        hash.add(direction), hash.add(strided);
      }
      model.add_to(hash, optimizer);
    });
}

void add_files(Results& results, const OptimizerOptions& options, const TemporaryDirectory& directory) {
  for (const GoldenRule& rule : golden_rules())
    results.add("file " + rule.name, [&](GoldenHash& hash, const std::string& format) {
      Model model(DType::kBF16);
      OptimizerOptions own = options;
      own.rule = rule.rule;
      Optimizer optimizer(own);
      GroupOptions group = group_of(rule, format);
      group.rule = "", group.master = "residual8";
      model.add_to(optimizer, optimizer.add_group(group));
      optimizer.step(model.gradients(0));
      optimizer.save(directory.file("state"), "{\"made by\": \"a test\"}");
      const std::string bytes = read_file(directory.file("state"));
      hash.add(bytes.data(), bytes.size());
      optimizer.step(model.gradients(1));
      hash.add(optimizer.load(directory.file("state")).data(), 3);
      optimizer.step(model.gradients(2));
      model.add_to(hash, optimizer);
    });
}

// One optimizer of several rules and types, with a seed of its own. Rules that refuse the format have dynamic8.
void add_mixed(Results& results, const OptimizerOptions& options) {
  for (const uint64_t seed : {0, 12345})
    results.add("mixed groups, seed " + std::to_string(seed), [&](GoldenHash& hash, const std::string& format) {
      OptimizerOptions own = options;
      own.seed = seed;
      Optimizer optimizer(own);
      std::vector<Model> models;
      for (const GoldenRule& rule : golden_rules()) {
        if (rule_info(find_rule(rule.rule)).sums && rule.name != rule.rule) continue;  // one estimate for all groups
        Model& model = models.emplace_back(kGoldenTypes[models.size() % 2], 1000 * models.size());
        try {
          model.add_to(optimizer, optimizer.add_group(group_of(rule, format)));
        } catch (const Error&) {
          model.add_to(optimizer, optimizer.add_group(group_of(rule, "dynamic8")));
        }
      }
      for (size_t step = 0; step < 3; ++step) {
        std::vector<Gradient> all;
        for (const Model& model : models)
          for (const Gradient& gradient : model.gradients(step)) all.push_back(gradient);
        optimizer.step(all);
      }
      int64_t first = 0;
      for (const Model& model : models) model.add_to(hash, optimizer, first), first += 3;
    });
}

void add_shards(Results& results, const OptimizerOptions& options) {
  for (const GoldenRule& rule : golden_rules())
    for (const bool rows_cut : {false, true})
      results.add("shard " + rule.name + (rows_cut ? " in a row" : " of rows"),
                  [&](GoldenHash& hash, const std::string& format) {
                    Model model(DType::kBF16);
                    Optimizer optimizer(options);
                    const int group = optimizer.add_group(group_of(rule, format));
                    WholeParam whole{{40, 602}, false, {20, 0}};
                    if (rows_cut) whole = {{10, 1000}, true, {0, 300}};
                    optimizer.add_param(group, model.params[0].view(), true, whole);
                    for (size_t step = 0; step < 3; ++step) {
                      const Gradient gradient = model.grads[step].gradient();
                      optimizer.step({&gradient, 1});
                    }
                    hash.add(model.params[0].data);
                    add_state(hash, optimizer, 0);
                  });
}

// State that was imported, and what steps make of it.
void add_imports(Results& results, const OptimizerOptions& options) {
  for (const GoldenRule& rule : golden_rules())
    results.add("import " + rule.name, [&](GoldenHash& hash, const std::string& format) {
      Model model(DType::kF32);
      Optimizer optimizer(options);
      model.add_to(optimizer, optimizer.add_group(group_of(rule, format)));
      optimizer.step(model.gradients(0));
      int k = 0;
      for (const StateInfo& state : optimizer.states_of(0)) {
        std::vector<float> values;
        Rng rng(5);
        for (int64_t i = 0; i < 6020; ++i) values.push_back(static_cast<float>(rng.over_binades(-20, 2)));
        for (float& value : values) value = state.is_signed || value > 0 ? value : -value;
        optimizer.import_state(0, k, values.data());
        optimizer.export_state(0, k++, values.data());
        hash.add(values);
      }
      optimizer.set_steps(0, 7);
      optimizer.step(model.gradients(1));
      model.add_to(hash, optimizer);
    });
}

TEST(GoldenResults, VotesDirectionsFilesShardsImports) {
  const TemporaryDirectory directory;
  GoldenList list("results",
                  "# Hashes of results other than those of plain steps; tests/golden/results_test.cpp. -: refused.\n");
  for (const GoldenPlace& place : golden_places(160 << 10)) {
    if (place.host >= 0 && place.threads == 1) continue;  // nothing here is larger than 4 chunks
    const OptimizerOptions options = options_at(place, directory.path());
    Results results;
    add_votes(results, options);
    add_directions(results, options);
    add_files(results, options, directory);
    add_mixed(results, options);
    add_shards(results, options);
    add_imports(results, options);
    list.check(results.table, place.name);
  }
}

}  // namespace
}  // namespace lowtide::testing
