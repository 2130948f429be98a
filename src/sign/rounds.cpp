#include "sign/rounds.h"

#include <algorithm>
#include <cinttypes>
#include <map>
#include <set>

#include "backend/catalog.h"
#include "core/crc32c.h"
#include "core/error.h"
#include "sign/ranks.h"
#include "sign/ties.h"

namespace lowtide {
namespace {

using wire::Announcement;
using wire::Reason;
using wire::Round;
using wire::Verdict;

// What all must have alike.
struct Compared {
  const char* name;
  std::string (*value)(const Announcement&);
};

std::string number(uint64_t x) { return std::to_string(x); }
std::string hexadecimal(uint64_t x) { return format("0x%016" PRIx64, x); }
std::string yes_no(bool x) { return x ? "yes" : "no"; }

std::string algorithm_name(int32_t algorithm) {
  switch (static_cast<SignAlgorithm>(algorithm)) {
    case SignAlgorithm::kAuto:
      return "auto";
    case SignAlgorithm::kOnePhase:
      return "one_phase";
    case SignAlgorithm::kTwoPhase:
      return "two_phase";
  }
  return number(static_cast<uint64_t>(algorithm));
}

std::string type_name(int32_t dtype) {
  return dtype >= 0 && dtype <= static_cast<int32_t>(DType::kF16) ? dtype_name(static_cast<DType>(dtype))
                                                                  : std::to_string(dtype);
}

std::string codec_name(int32_t codec) {
  return codec >= 0 && static_cast<size_t>(codec) < codecs().size() ? codec_info(codec).name
                                                                    : std::to_string(codec);
}

const Compared kCompared[] = {
    {"format version", [](const Announcement& a) { return number(a.prefix.version); }},
    {"call", [](const Announcement& a) { return std::string(a.prefix.kind == wire::Kind::kMean ? "mean" : "vote"); }},
    {"number of ranks", [](const Announcement& a) { return std::to_string(a.prefix.size); }},
    {"ranks of a node", [](const Announcement& a) { return std::to_string(a.inside); }},
    {"step", [](const Announcement& a) { return number(a.step); }},
    {"number of signs", [](const Announcement& a) { return std::to_string(a.count); }},
    {"dtype", [](const Announcement& a) { return type_name(a.dtype); }},
    {"first index", [](const Announcement& a) { return number(a.first_index); }},
    {"digest", [](const Announcement& a) { return hexadecimal(a.digest); }},
    {"ties", [](const Announcement& a) { return tie_rule_name(static_cast<TieRule>(a.ties)); }},
    {"seed", [](const Announcement& a) { return number(a.seed); }},
    {"algorithm", [](const Announcement& a) { return algorithm_name(a.algorithm); }},
    {"presence", [](const Announcement& a) { return yes_no(a.has_presence); }},
    {"settle", [](const Announcement& a) { return yes_no(a.settle); }},
    {"residual format", [](const Announcement& a) { return codec_name(a.residual); }},
};

// By value, the ranks that have it.
using Values = std::map<std::string, std::vector<int>>;

// Throws if `values` are several, naming those in the minority as the cause.
void require_one(const char* name, const Values& values) {
  if (values.size() <= 1) return;
  const auto most = std::max_element(values.begin(), values.end(), [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size() : a.second[0] > b.second[0];
  });
  std::string text =
      format("ranks differ in %s: got %s on %s", name, most->first.c_str(), name_ranks(most->second).c_str());
  std::vector<int> others;
  for (const auto& [value, ranks] : values) {
    if (&ranks == &most->second) continue;
    text += ", " + value + " on " + name_ranks(ranks);
    others.insert(others.end(), ranks.begin(), ranks.end());
  }
  std::sort(others.begin(), others.end());
  throw CollectiveError(ErrorKind::kInvalidArgument, text + "; wanted the same on all. Nothing was applied", others);
}

const char* round_name(Round round) {
  switch (round) {
    case Round::kMeasure:
      return "measuring the link (algorithm auto)";
    case Round::kAnnounce:
      return "announcing a vote";
    case Round::kConfirm:
      return "confirming";
    case Round::kSettle:
      return "settling";
    default:
      return "another round";
  }
}

// All ranks' records, those that were damaged zero. Before a call begins a rank in another round is refused; later it
// can only be a message that went astray.
template <class Record>
std::vector<Record> gather(Channel& channel, const Record& mine, std::vector<bool>* sound) {
  std::vector<Record> all(static_cast<size_t>(channel.size()));
  channel.gather_records(&mine, reinterpret_cast<std::byte*>(all.data()));
  all[static_cast<size_t>(channel.rank())] = mine;
  sound->assign(all.size(), true);
  const Round round = mine.prefix.round;
  const bool begins = round == Round::kMeasure || round == Round::kAnnounce;
  Values rounds;
  for (size_t r = 0; r < all.size(); ++r) {
    (*sound)[r] = wire::sound_record(&all[r]) && all[r].prefix.rank == static_cast<int32_t>(r) &&
                  (begins || all[r].prefix.round == round);
    if ((*sound)[r])
      rounds[round_name(all[r].prefix.round)].push_back(static_cast<int>(r));
    else
      all[r] = Record{};
  }
  require_one("where they are in the call", rounds);
  return all;
}

const char* message_name(Round round) {
  switch (round) {
    case Round::kAnnounce:
      return "announcement";
    case Round::kBallot:
      return "ballot";
    case Round::kConfirm:
    case Round::kSettle:
      return "confirmation";
    default:
      return "result";
  }
}

Verdict verdict(const Channel& channel, const Agreement& agreed, Round round) {
  const Announcement& mine = agreed.of[static_cast<size_t>(channel.rank())];
  Verdict out;
  out.prefix = mine.prefix;
  out.prefix.round = round;
  out.step = mine.step;
  out.announcement = mine.crc;
  return out;
}

void accuse(Verdict* verdict, Reason reason, Round of, int culprit, int witness) {
  verdict->reason = reason, verdict->of = of;
  verdict->culprit = culprit, verdict->witness = witness;
}

// What `all` confirmations come to, in `view`.
void judge(const Agreement& agreed, const std::vector<Verdict>& all, const std::vector<bool>& sound, Verdict* view) {
  const auto me = view->prefix.rank;
  for (size_t r = 0; r < all.size(); ++r) {
    const uint32_t due = agreed.announcement(static_cast<int>(r));
    if (!sound[r] || (due && all[r].announcement != due) || all[r].step != view->step)
      return accuse(view, sound[r] ? Reason::kOtherMessage : Reason::kBadRecord, Round::kConfirm, static_cast<int>(r),
                    me);
  }
  std::map<uint32_t, int> results;
  for (const Verdict& each : all) {
    if (each.reason != Reason::kFine) return accuse(view, each.reason, each.of, each.culprit, each.witness);
    ++results[each.result];
  }
  uint32_t most = all[0].result;
  for (const Verdict& each : all)
    if (results[each.result] > results[most]) most = each.result;
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].result == most) continue;
    const auto rank = static_cast<int>(r);
    const Reason suspicion = all[r].suspicion;
    if (suspicion != Reason::kFine)
      return accuse(view, suspicion, suspicion == Reason::kNoAnnouncement ? Round::kAnnounce : Round::kBallot,
                    all[r].suspect, rank);
    return accuse(view, Reason::kDiffers, Round::kResult, rank, rank);
  }
}

// The same text on all ranks with the same views.
void require_fine(const std::vector<Verdict>& views) {
  std::set<std::string> causes;
  std::set<int> culprits;
  for (const Verdict& view : views) {
    if (view.reason == Reason::kFine) continue;
    culprits.insert(view.culprit);
    causes.insert(format("the %s of rank %d%s %s", message_name(view.of), view.culprit,
                         view.witness == view.culprit ? "" : format(" at rank %d", view.witness).c_str(),
                         wire::describe(view.reason)));
  }
  if (causes.empty()) return;
  std::string text;
  for (const std::string& cause : causes) text += (text.empty() ? "" : "; ") + cause;
  throw CollectiveError(ErrorKind::kIo, text + ". Nothing was applied on any rank; the same call may be made again",
                        {culprits.begin(), culprits.end()});
}

}  // namespace

uint32_t Agreement::weights_crc() const {
  uint32_t crc = 0;
  for (const Announcement& each : of) crc = crc32c(&each.weight, sizeof each.weight, crc);
  return crc;
}

Agreement announce(Channel& channel, Announcement mine) {
  mine.prefix.round = Round::kAnnounce;
  mine.prefix.rank = channel.rank(), mine.prefix.size = channel.size();
  wire::seal_record(&mine);
  Agreement agreed;
  std::vector<bool> sound;
  agreed.of = gather(channel, mine, &sound);
  uint64_t votes = 0;
  std::vector<int> damaged;
  for (size_t r = 0; r < agreed.of.size(); ++r) {
    const Announcement& a = agreed.of[r];
    agreed.reasons.push_back(sound[r] ? Reason::kFine : Reason::kNoAnnouncement);
    if (a.failed) agreed.failed.push_back(static_cast<int>(r));
    if (a.nonfinite && !a.failed) agreed.nonfinite.push_back(static_cast<int>(r));
    votes += a.weight;
  }
  if (!agreed.failed.empty()) return agreed;
  for (const Compared& each : kCompared) {
    Values values;
    for (size_t r = 0; r < agreed.of.size(); ++r)
      if (sound[r]) values[each.value(agreed.of[r])].push_back(static_cast<int>(r));
    require_one(each.name, values);
  }
  if (!agreed.nonfinite.empty()) return agreed;
  if (votes == 0 || votes >= uint64_t{1} << 31)
    throw CollectiveError(ErrorKind::kInvalidArgument,
                          format("got weights of %" PRIu64 " votes in all, wanted from 1 to 2^31 - 1", votes), {});
  return agreed;
}

std::vector<wire::Measurement> gather_measurements(Channel& channel, wire::Measurement mine) {
  mine.prefix.round = Round::kMeasure;
  mine.prefix.rank = channel.rank(), mine.prefix.size = channel.size();
  wire::seal_record(&mine);
  std::vector<bool> sound;
  std::vector<wire::Measurement> all = gather(channel, mine, &sound), out;
  for (size_t r = 0; r < all.size(); ++r)
    if (sound[r]) out.push_back(all[r]);
  return out;
}

void confirm(Channel& channel, const Agreement& agreed, const Found& found) {
  Verdict mine = verdict(channel, agreed, Round::kConfirm);
  mine.result = found.result_crc;
  mine.suspect = found.suspect, mine.suspicion = found.suspicion;
  const auto damaged = std::find(agreed.reasons.begin(), agreed.reasons.end(), Reason::kNoAnnouncement);
  if (damaged != agreed.reasons.end())
    mine.suspect = static_cast<int32_t>(damaged - agreed.reasons.begin()), mine.suspicion = *damaged;
  if (found.reason != Reason::kFine) accuse(&mine, found.reason, Round::kResult, found.culprit, channel.rank());
  wire::seal_record(&mine);
  std::vector<bool> sound;
  const std::vector<Verdict> all = gather(channel, mine, &sound);
  Verdict view = verdict(channel, agreed, Round::kSettle);
  judge(agreed, all, sound, &view);
  wire::seal_record(&view);
  if (!agreed.of[static_cast<size_t>(channel.rank())].settle) return require_fine({view});
  // A damaged view is left out: it hides no trouble unless there are two of them.
  require_fine(gather(channel, view, &sound));
}

}  // namespace lowtide
