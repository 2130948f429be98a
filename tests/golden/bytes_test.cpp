// Claim: docs/rules.md says what every optimizer takes in every state format, with every kind of master weights, in RAM
// and on disk; forecast() says the same before a run, and the optimizer's report after a step.
// LOWTIDE_GOLDEN=write writes these tables (golden.h).
#include <algorithm>

#include "golden/cases.h"
#include "lowtide/planning.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kRows = 512, kColumns = 1024, kCount = kRows * kColumns;
const GoldenPart kTables{"docs/rules.md", "## Bytes per parameter", "## "};

struct Bytes {
  int64_t params, state, ram, disk, moved;
  bool operator==(const Bytes&) const = default;
};

struct Comparison {
  int64_t cells = 0, refused = 0;

  // The bytes of one bfloat16 parameter: planned and measured. Nothing if the combination is refused, by both.
  std::optional<Bytes> of(const OptimizerOptions& options, const GroupOptions& group, const std::string& name) {
    ++cells;
    std::optional<Bytes> planned, measured;
    ForecastRequest request;
    request.options = options;
    request.groups.push_back({group, {{{kRows, kColumns}, {}, DType::kBF16}}});
    try {
      const Forecast plan = forecast(request).total;
      if (plan.fits) planned = {plan.params, plan.state_bytes, plan.host_bytes, plan.disk_bytes, plan.moved_per_step};
    } catch (const Error&) {
    }
    try {
      std::vector<uint16_t> param(kCount), grad(kCount, 0x3c00);
      Optimizer optimizer(options);
      optimizer.add_param(optimizer.add_group(group), {param.data(), DType::kBF16, {kRows, kColumns}, {}});
      const Gradient gradient{grad.data(), DType::kBF16, nullptr};
      optimizer.step({&gradient, 1});
      const MemoryReport report = optimizer.report();
      measured = {report.params, report.state_bytes, report.allocated_bytes, report.disk_bytes, report.moved_per_step};
    } catch (const Error&) {
    }
    refused += !measured;
    EXPECT_TRUE(planned == measured) << name << ": planned and measured bytes differ, or one of them is refused";
    return measured;
  }
};

std::string per_parameter(int64_t bytes, int digits = 6) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, static_cast<double>(bytes) / kCount);
  std::string out = text;
  out.erase(out.find_last_not_of('0') + 1);
  return out.back() == '.' ? out.substr(0, out.size() - 1) : out;
}

GroupOptions group_of(const GoldenRule& rule, const std::string& format, const std::string& master = "") {
  GroupOptions group{.hyper = rule.hyper, .state = format, .master = master, .rule = rule.rule};
  return group;
}

// One row for all rules, with the options that change bytes, that have the same cells; one column for each format.
template <class Cell>
std::string table(const Cell& cell) {
  std::ostringstream out;
  out << "| optimizer |";
  std::string line = "|---|", plain;  // plain: the cells of a rule without options
  for (const std::string& format : codec_names()) out << " " << format << " |", line += "---|";
  out << "\n" << line << "\n";
  std::vector<std::pair<std::string, std::string>> rows;  // cells, and the optimizers that have them
  for (const GoldenRule& rule : golden_rules()) {
    std::string cells;
    for (const std::string& format : codec_names()) cells += " " + cell(rule, format) + " |";
    if (rule.name == rule.rule) plain = cells;
    if (rule.name != rule.rule && cells == plain) continue;
    const auto at = std::ranges::find(rows, cells, &std::pair<std::string, std::string>::first);
    std::string& names = at == rows.end() ? rows.emplace_back(cells, "").second : at->second += ", ";
    names += "`" + rule.name + "`";
  }
  for (const auto& [cells, names] : rows) out << "| " << names << " |" << cells << "\n";
  return out.str();
}

TEST(GoldenBytes, TablesAreWhatIsPlannedAndMeasured) {
  const TemporaryDirectory directory;
  Comparison compare;
  std::map<std::string, std::optional<Bytes>> found;  // those without master weights are asked for four times
  const auto in_ram = [&](const GoldenRule& rule, const std::string& format, const std::string& master) {
    const std::string name = rule.name + " " + format + " " + master;
    const auto at = found.find(name);
    if (at != found.end()) return at->second;
    return found[name] = compare.of({}, group_of(rule, format, master), name);
  };
  std::ostringstream page;
  page << "\nThese bytes were measured with a bfloat16 parameter of " << kRows << " x " << kColumns
       << " elements. \"-\" means refused. Options follow their rule's name after a \"+\";\nothers change no bytes.\n\n"
          "### State\n\nThese bytes are the same in RAM, on disk and on a device.\n\n";
  page << table([&](const GoldenRule& rule, const std::string& format) {
    const std::optional<Bytes> bytes = in_ram(rule, format, "");
    return bytes ? per_parameter(bytes->state) : "-";
  });

  page
      << "\n### Master weights\n\nEach kind of master adds these bytes per element to the state of a 16-bit parameter, "
         "for every optimizer and state format.\n\n| master | adds |\n|---|---|\n";
  for (const char* master : {"residual16", "residual8", "stochastic"}) {
    int64_t adds = -1;
    for (const GoldenRule& rule : golden_rules())
      for (const std::string& format : codec_names()) {
        const std::optional<Bytes> without = in_ram(rule, format, ""), with = in_ram(rule, format, master);
        ASSERT_EQ(without.has_value(), with.has_value()) << rule.name << " " << format << " " << master;
        if (!with) continue;
        if (adds < 0) adds = with->state - without->state;
        EXPECT_EQ(with->state - without->state, adds) << rule.name << " " << format << " " << master;
      }
    page << "| " << master << " | " << per_parameter(adds) << " |\n";
  }

  page << "\n### Under a budget\n\nA step reads and writes all state on the disk. LAMB, Muon, Prodigy, and LARS with "
          "`max_unorm` read it twice.\n";
  OptimizerOptions options;
  options.memory.host = kCount / 2, options.memory.disk = directory.path();
  for (const GoldenRule& rule : golden_rules())
    for (const std::string& format : codec_names()) {
      const std::string name = rule.name + " " + format + " budget";
      const std::optional<Bytes> bytes = compare.of(options, group_of(rule, format), name);
      if (!bytes) continue;
      const bool has_norms =
          rule.name.starts_with("lamb") || rule.name.starts_with("prodigy") || rule.name.ends_with("max_unorm");
      EXPECT_LE(bytes->ram, options.memory.host) << name;
      EXPECT_EQ(bytes->moved, (has_norms ? 3 : 2) * bytes->disk) << name;
    }

  page << "\n";
  if (golden_write()) kTables.write(page.str());
  EXPECT_EQ(page.str(), kTables.read()) << kTables.file;
  figure("bytes per parameter: {} combinations planned and measured, {} of them refused by both", compare.cells,
         compare.refused);
}

}  // namespace
}  // namespace lowtide::testing
