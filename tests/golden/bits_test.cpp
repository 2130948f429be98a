// Claim: parameters and states have the bits of the committed lists, for every rule with its options, state format,
// rounding, pair of element types and kind of master weights, wherever state lives, with any number of threads and on
// any instruction set: all cells in one place, and of each other place a share of the rules. golden.h says how lists
// are written.
#include "golden/cases.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Shape {
  std::vector<int64_t> sizes, param_strides, grad_strides;
};
struct Column {
  DType param, grad;
  std::string master;
  std::string name() const {
    return std::string(short_name(param)) + "/" + short_name(grad) + (master.empty() ? "" : "+" + master);
  }
};

// The parameters of each cell, and the cells of a rule.
struct Cells {
  std::vector<Shape> shapes;
  std::vector<std::string> roundings;
  std::vector<Column> columns;
  size_t steps;
};

std::vector<GoldenTensor> gradients_of(const Cells& cells) {
  std::vector<GoldenTensor> grads;
  for (size_t step = 0; step < cells.steps; ++step)
    for (const DType dtype : kGoldenTypes)
      for (size_t s = 0; s < cells.shapes.size(); ++s)
        grads.emplace_back(dtype, cells.shapes[s].sizes, cells.shapes[s].grad_strides, 70 + 10 * step + s, -9, 0, 0.05);
  return grads;
}

// Rows "<rule> <format> <rounding>" of one rule: one optimizer steps all cells, those refused left out. Random bits go
// by the number of a parameter, so that numbers are the same however many are refused.
void add_rows(GoldenTable& table, const Cells& cells, const std::vector<GoldenTensor>& grads, const GoldenRule& rule,
              const OptimizerOptions& options, int64_t& on_disk) {
  Optimizer optimizer(options);
  const int none = optimizer.add_group({});
  std::vector<GoldenTensor> params;
  std::vector<int> groups;  // -1: refused
  std::vector<DType> grad_types;
  params.reserve(codec_names().size() * cells.roundings.size() * cells.columns.size() * cells.shapes.size());
  for (const std::string& format : codec_names())
    for (const std::string& rounding : cells.roundings) {
      for (const Column& column : cells.columns) {
        GroupOptions group{.hyper = rule.hyper,
                           .state = format,
                           .min_quantized_numel = 100,
                           .rounding = rounding,
                           .master = column.master,
                           .rule = rule.rule};
        grad_types.push_back(column.grad);
        try {
          groups.push_back(optimizer.add_group(group));
        } catch (const Error&) {
          groups.push_back(-1);
        }
        for (size_t s = 0; s < cells.shapes.size(); ++s) {
          const Shape& shape = cells.shapes[s];
          GoldenTensor& param = params.emplace_back(column.param, shape.sizes, shape.param_strides, 7 + s, -6, 0);
          try {
            if (groups.back() >= 0) {
              optimizer.add_param(groups.back(), param.view());
              continue;
            }
          } catch (const Error&) {
            groups.back() = -1;
          }
          optimizer.add_param(none, {nullptr, DType::kF32, {0}, {}});
        }
      }
      table.rows.push_back({rule.name + " " + format + " " + rounding, {}});
    }

  for (size_t step = 0; step < cells.steps; ++step) {
    StepOptions how;
    if (step == 1) {  // mid-way, others
      Hyper hyper = rule.hyper;
      hyper.lr *= 0.5, hyper.weight_decay *= 2, hyper.beta1 *= 0.875, hyper.momentum *= 0.875;
      for (const int group : groups)
        if (group >= 0) optimizer.set_hyper(group, hyper);
    }
    if (step == 2) how.grad_scale = 0.75;
    std::vector<Gradient> gradients;
    for (size_t cell = 0; cell < groups.size(); ++cell)
      for (size_t s = 0; s < cells.shapes.size(); ++s) {
        const bool given = groups[cell] >= 0 && !(step == 2 && s == 1);
        const size_t at = (step * 3 + static_cast<size_t>(grad_types[cell])) * cells.shapes.size() + s;
        gradients.push_back(given ? grads[at].gradient() : Gradient{});
      }
    EXPECT_TRUE(optimizer.step(gradients, how).applied);
  }
  on_disk += optimizer.report().disk_bytes;

  const size_t first = table.rows.size() - groups.size() / cells.columns.size();
  for (size_t cell = 0; cell < groups.size(); ++cell) {
    GoldenHash hash;
    for (size_t s = 0; s < cells.shapes.size() && groups[cell] >= 0; ++s) {
      const size_t number = cell * cells.shapes.size() + s;
      hash.add(params[number].data);
      add_state(hash, optimizer, static_cast<int64_t>(number));
    }
    table.rows[first + cell / cells.columns.size()].second.push_back(groups[cell] < 0 ? "-" : hash.text());
  }
}

void check_everywhere(GoldenList& list, const Cells& cells, int64_t some_bytes) {
  const std::vector<GoldenTensor> grads = gradients_of(cells);
  const TemporaryDirectory directory;
  const std::vector<GoldenPlace> places = golden_places(some_bytes);
  const std::vector<GoldenRule> rules = golden_rules();
  const int64_t others = std::ssize(places) - 1;
  for (int64_t p = 0; p <= others; ++p) {
    const GoldenPlace& place = places[static_cast<size_t>(p)];
    GoldenTable table;
    for (const Column& column : cells.columns) table.columns.push_back(column.name());
    int64_t on_disk = 0, taken = 0;
    for (int64_t r = 0; r < std::ssize(rules); ++r) {
      if (p > 0 && !in_share(r, p - 1, others)) continue;  // the first place has all cells of the list
      add_rows(table, cells, grads, rules[static_cast<size_t>(r)], options_at(place, directory.path()), on_disk);
      ++taken;
    }
    EXPECT_GT(taken, 0) << place.name;
    EXPECT_EQ(place.host >= 0, on_disk > 0) << "control: budgets have to send state to the disk";
    list.check(table, place.name, taken == std::ssize(rules));
  }
}

TEST(GoldenBits, EveryCombinationOfOptions) {
  // An even row with a block of 256 and a part of one, odd rows that are strided, and one too small for its format.
  Cells cells{
      {{{2, 302}, {}, {304, 1}}, {{3, 151}, {1, 3}, {}}, {{5}, {}, {}}}, {"auto", "nearest", "stochastic"}, {}, 4};
  for (const DType param : kGoldenTypes)
    for (const DType grad : kGoldenTypes)
      for (const char* master : {"", "residual16", "residual8", "stochastic"})
        if (!*master || param != DType::kF32) cells.columns.push_back({param, grad, master});
  GoldenList list("bits",
                  "# Hashes of parameters and states after some steps; tests/golden/bits_test.cpp. -: refused.\n"
                  "# Rows: rule+options, state format, rounding. Columns: parameter/gradient type+master.\n");
  check_everywhere(list, cells, 512 << 10);
}

TEST(GoldenBits, LargeParameters) {
  // Many blocks and chunks: odd rows, one long row, three dimensions of which the last two are swapped in memory.
  const Cells cells{{{{33, 517}, {}, {}}, {{20001}, {}, {}}, {{6, 20, 64}, {1280, 1, 20}, {}}},
                    {"auto"},
                    {{DType::kF32, DType::kF32, ""},
                     {DType::kBF16, DType::kBF16, ""},
                     {DType::kBF16, DType::kBF16, "residual16"},
                     {DType::kF16, DType::kF32, "residual8"}},
                    3};
  GoldenList list("bits_large", "# As [bits], of parameters of many blocks; tests/golden/bits_test.cpp.\n");
  check_everywhere(list, cells, 1 << 20);
}

}  // namespace
}  // namespace lowtide::testing
