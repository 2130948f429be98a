#include "sign/rounds.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "backend/catalog.h"
#include "backend/signs.h"
#include "core/error.h"
#include "sign/channel.h"

namespace lowtide {
namespace {

using Cause = CollectiveError::Cause;
using wire::Announcement;
using wire::Reason;
using wire::Round;
using wire::Verdict;

// A field that all ranks must announce alike.
struct Compared {
  const char* name;
  std::string (*value)(const Announcement&);
};

std::string number(uint64_t x) { return std::to_string(x); }
std::string yes_no(bool x) { return x ? "yes" : "no"; }

std::string algorithm_name(int32_t algorithm) {
  constexpr const char* kNames[] = {"auto", "one_phase", "two_phase"};
  const bool is_named = algorithm >= 0 && algorithm < static_cast<int32_t>(std::size(kNames));
  return is_named ? kNames[algorithm] : std::to_string(algorithm);
}

std::string type_name(int32_t dtype) {
  return dtype >= 0 && dtype <= static_cast<int32_t>(DType::kF16) ? dtype_name(static_cast<DType>(dtype))
                                                                  : std::to_string(dtype);
}

std::string codec_name(int32_t codec) {
  return codec >= 0 && static_cast<size_t>(codec) < codecs().size() ? codec_info(codec).name : std::to_string(codec);
}

std::string digest(const Announcement& a) { return format("0x%016" PRIx64, a.digest); }

const Compared kCompared[] = {
    {"format version", [](const Announcement& a) { return number(a.prefix.version); }},
    {"call", [](const Announcement& a) { return std::string(a.prefix.kind == wire::Kind::kMean ? "mean" : "vote"); }},
    {"number of ranks", [](const Announcement& a) { return std::to_string(a.prefix.size); }},
    {"ranks of a node", [](const Announcement& a) { return std::to_string(a.inside); }},
    {"step", [](const Announcement& a) { return number(a.step); }},
    {"number of signs", [](const Announcement& a) { return std::to_string(a.count); }},
    {"dtype", [](const Announcement& a) { return type_name(a.dtype); }},
    {"first index", [](const Announcement& a) { return number(a.first_index); }},
    {"digest", digest},
    {"ties", [](const Announcement& a) { return tie_rule_name(static_cast<TieRule>(a.ties)); }},
    {"seed", [](const Announcement& a) { return number(a.seed); }},
    {"algorithm", [](const Announcement& a) { return algorithm_name(a.algorithm); }},
    {"presence", [](const Announcement& a) { return yes_no(a.has_presence); }},
    {"commit", [](const Announcement& a) { return yes_no(a.commit); }},
    {"parts before", [](const Announcement& a) { return number(a.part); }},
    {"whether more parts follow", [](const Announcement& a) { return yes_no(a.more); }},
    {"residual format", [](const Announcement& a) { return codec_name(a.residual); }},
};

// The ranks that announced each value.
using Values = std::map<std::string, std::vector<int>>;

// Throws if there is more than one value, naming the ranks in the minority as the cause.
void require_one(const char* name, const Values& values, Cause cause = Cause::kDisagreement) {
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
  throw CollectiveError(cause, text + "; wanted the same on all. Nothing was applied", others);
}

// The names of a rank's action in a round, and of the message that it sends there.
struct RoundWords {
  const char *doing, *message;
};
const RoundWords& words_of(Round round) {
  static constexpr RoundWords kOther{"another round", "result"};
  static constexpr RoundWords kWords[] = {kOther,
                                          {"measuring the link (algorithm auto)", "result"},
                                          {"announcing a vote", "announcement"},
                                          {"another round", "ballot"},
                                          kOther,
                                          kOther,
                                          {"confirming", "confirmation"},
                                          {"committing", "confirmation"}};
  static_assert(std::size(kWords) == static_cast<size_t>(Round::kCommit) + 1);
  return kWords[round <= Round::kCommit ? static_cast<size_t>(round) : 0];
}

// Zeroes damaged records. Before the call has begun, a record from another round is an error; later, it can only be a
// stray message.
template <class Record>
std::vector<Record> check(std::vector<Record> all, const Record& mine, std::vector<bool>* sound) {
  all[static_cast<size_t>(mine.prefix.rank)] = mine;
  sound->assign(all.size(), true);
  const Round round = mine.prefix.round;
  const bool begins = round == Round::kMeasure || round == Round::kAnnounce;
  Values rounds;
  for (size_t r = 0; r < all.size(); ++r) {
    (*sound)[r] = wire::sound_record(&all[r]) && all[r].prefix.rank == static_cast<int32_t>(r) &&
                  (begins || all[r].prefix.round == round);
    if ((*sound)[r])
      rounds[words_of(all[r].prefix.round).doing].push_back(static_cast<int>(r));
    else
      all[r] = Record{};
  }
  require_one("where they are in the call", rounds);
  return all;
}

// Gathers the records of all ranks and returns them after check().
template <class Record>
std::vector<Record> gather(Channel& channel, const Record& mine, std::vector<bool>* sound) {
  std::vector<Record> all(static_cast<size_t>(channel.size()));
  channel.gather_records(&mine, reinterpret_cast<std::byte*>(all.data()));
  return check(std::move(all), mine, sound);
}

Verdict verdict(const Channel& channel, const Agreement& agreed, Round round) {
  const Announcement& mine = agreed.of[static_cast<size_t>(channel.rank())];
  Verdict out;
  out.prefix = mine.prefix;
  out.prefix.round = round;
  out.step = mine.step;
  out.announcement = mine.checksum;
  return out;
}

void accuse(Verdict* verdict, Reason reason, Round of, int culprit, int witness) {
  verdict->reason = reason, verdict->of = of;
  verdict->culprit = culprit, verdict->witness = witness;
}

// Derives the verdict from all confirmations and writes it to `view`.
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
  // A message that some ranks left out is the cause, even if more ranks left it out than kept it.
  for (const bool of_all : {false, true})
    for (size_t r = 0; r < all.size() && results.size() > 1; ++r) {
      const auto rank = static_cast<int>(r);
      const Reason suspicion = all[r].suspicion;
      if (suspicion != Reason::kFine && (of_all || all[r].result != most))
        return accuse(view, suspicion, suspicion == Reason::kNoAnnouncement ? Round::kAnnounce : Round::kBallot,
                      all[r].suspect, rank);
    }
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r].result != most)
      return accuse(view, Reason::kDiffers, Round::kResult, static_cast<int>(r), static_cast<int>(r));
}

// Throws if a view is not fine. Ranks with the same views throw the same text. `shared` says that all ranks have these
// views. A rank that has only its own view knows what the others will do, unless a confirmation reached it damaged,
// which may have reached the others intact.
void require_fine(const std::vector<Verdict>& views, bool shared) {
  std::set<std::string> texts;
  std::set<int> culprits;
  Cause cause = Cause::kDamage;
  bool all_refuse = true;
  for (const Verdict& view : views) {
    if (view.reason == Reason::kFine) continue;
    all_refuse = shared || view.of != Round::kConfirm;
    if (view.reason == Reason::kSenderFailed) cause = Cause::kRankFailed;
    culprits.insert(view.culprit);
    texts.insert(format("the %s of rank %d%s %s", words_of(view.of).message, view.culprit,
                        view.witness == view.culprit ? "" : format(" at rank %d", view.witness).c_str(),
                        wire::describe(view.reason)));
  }
  if (texts.empty()) return;
  std::string text;
  for (const std::string& each : texts) text += (text.empty() ? "" : "; ") + each;
  text += all_refuse ? ". Nothing was applied on any rank; the same call may be made again"
                     : ". Nothing was applied here; without the commit round (commit=false) other ranks may have "
                       "applied it, and then refuse this call: copy parameters from one of them, or load a checkpoint";
  throw CollectiveError(cause, text, {culprits.begin(), culprits.end()});
}

// Checks that all ranks make the same call. `sound` says which records are valid.
Agreement agree(std::vector<Announcement> all, const std::vector<bool>& sound) {
  Agreement agreed;
  agreed.of = std::move(all);
  uint64_t votes = 0;
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
    require_one(each.name, values, each.value == digest ? Cause::kDigest : Cause::kDisagreement);
  }
  if (!agreed.nonfinite.empty()) return agreed;
  if (votes == 0 || votes >= uint64_t{1} << 31)
    throw CollectiveError(Cause::kDisagreement,
                          format("got weights of %" PRIu64 " votes in all, wanted from 1 to 2^31 - 1", votes), {});
  return agreed;
}

}  // namespace

const Announcement& Agreement::call() const {
  return of[static_cast<size_t>(std::find(reasons.begin(), reasons.end(), Reason::kFine) - reasons.begin())];
}

uint32_t Agreement::weights_checksum() const {
  uint32_t sum = 0;
  for (const Announcement& each : of) {
    const uint32_t counted[] = {each.weight, each.late};
    sum = wire::checksum(counted, sizeof counted, sum);
  }
  return sum;
}

bool Agreement::any_late() const {
  return std::any_of(of.begin(), of.end(), [](const Announcement& each) { return each.late != 0; });
}

Agreement Agreement::of_one(const Announcement& mine) {
  Agreement out;
  out.of.resize(static_cast<size_t>(mine.prefix.size));
  out.reasons.assign(out.of.size(), Reason::kNoAnnouncement);
  const auto me = static_cast<size_t>(mine.prefix.rank);
  out.of[me] = mine, out.reasons[me] = Reason::kFine;
  return out;
}

void seal_announcement(const Channel& channel, Announcement* mine) {
  mine->prefix.round = Round::kAnnounce;
  mine->prefix.rank = channel.rank(), mine->prefix.size = channel.size();
  wire::seal_record(mine);
}

Agreement announce(Channel& channel, const Announcement& mine) {
  std::vector<bool> sound;
  std::vector<Announcement> all = gather(channel, mine, &sound);
  return agree(std::move(all), sound);
}

std::optional<Agreement> announced_with_ballots(const Channel& channel, const Announcement& mine,
                                                const std::byte* records) {
  std::vector<Announcement> all(static_cast<size_t>(channel.size()));
  std::memcpy(all.data(), records, all.size() * sizeof all[0]);
  std::vector<bool> sound;
  all = check(std::move(all), mine, &sound);
  for (const Announcement& each : all)
    if (each.apart) return std::nullopt;
  Agreement agreed = agree(std::move(all), sound);
  agreed.with_ballots = true;
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

void join(Found* all, const Agreement& agreed, const Found& part) {
  all->result = wire::checksum(&part.result, sizeof part.result, all->result);
  if (all->reason == Reason::kFine) all->reason = part.reason, all->culprit = part.culprit;
  if (all->suspicion != Reason::kFine) return;
  all->suspect = part.suspect, all->suspicion = part.suspicion;
  const auto damaged = std::find(agreed.reasons.begin(), agreed.reasons.end(), Reason::kNoAnnouncement);
  if (damaged != agreed.reasons.end())
    all->suspect = static_cast<int>(damaged - agreed.reasons.begin()), all->suspicion = *damaged;
}

void confirm(Channel& channel, const Agreement& agreed, const Found& found) {
  Verdict mine = verdict(channel, agreed, Round::kConfirm);
  mine.result = found.result;
  mine.suspect = found.suspect, mine.suspicion = found.suspicion;
  if (found.reason != Reason::kFine) accuse(&mine, found.reason, Round::kResult, found.culprit, channel.rank());
  wire::seal_record(&mine);
  std::vector<bool> sound;
  const std::vector<Verdict> all = gather(channel, mine, &sound);
  Verdict view = verdict(channel, agreed, Round::kCommit);
  judge(agreed, all, sound, &view);
  wire::seal_record(&view);
  if (!agreed.of[static_cast<size_t>(channel.rank())].commit) return require_fine({view}, false);
  // A damaged view is left out, because only two damaged views could hide a problem.
  require_fine(gather(channel, view, &sound), true);
}

}  // namespace lowtide
