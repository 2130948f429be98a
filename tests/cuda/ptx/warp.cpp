#include "warp.h"

#include <algorithm>
#include <cstdio>

namespace ptx {
namespace {

constexpr uint64_t kMostSteps = uint64_t{1} << 32;  // of warps in a launch: more is a loop without an end

std::string hex(uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", mask);
  return text;
}

}  // namespace

void Warp::begin(Team& team, uint32_t number, uint32_t lanes) {
  const Program& program = team.program;
  team_ = &team;
  constants_ = program.constants.data();
  // Registers hold any values at the beginning, here those of another warp: nothing may depend on them.
  registers_.resize(size_t{kWarp} * program.registers);
  local_bytes_ = program.local_bytes;
  local_.assign(size_t{kWarp} * local_bytes_, std::byte{0xc5});
  local_written_.assign(size_t{kWarp} * local_bytes_, std::byte{0});
  first_thread_ = number * kWarp;
  exist_ = lanes == kWarp ? kAllLanes : (1u << lanes) - 1;
  ended_ = at_barrier_ = 0;
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    destination<uint32_t>(kThread)[lane] = first_thread_ + lane;
    destination<uint32_t>(kThreads)[lane] = team.block_threads;
    destination<uint32_t>(kBlock)[lane] = team.block;
    destination<uint32_t>(kBlocks)[lane] = team.grid;
    destination<uint32_t>(kLane)[lane] = lane;
    stack_[lane].clear();
    clock_[lane] = 1;
    std::fill_n(known_[lane], kWarp, 0);
  }
  waits_.clear();
  groups_.assign(1, {0, exist_});
}

void Warp::fail(uint32_t lane, const std::string& what, bool address) const {
  const Program& program = team_->program;
  throw Failure(what + " (thread " + std::to_string(first_thread_ + lane) + " of block " +
                    std::to_string(team_->block) + ", " + program.file + ":" + std::to_string(now_ ? now_->line : 0) +
                    ": " + (now_ ? Names::text(now_->name) : "") + ", " + program.name + ")",
                address);
}

// Each learns what the others know, and what they have done.
void Warp::synchronize(uint32_t mask) {
  uint32_t all[kWarp];
  std::copy_n(clock_, kWarp, all);
  for (uint32_t of = 0; of < kWarp; ++of) {
    if (mask >> of & 1) continue;
    all[of] = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) all[of] = std::max(all[of], known_[std::countr_zero(rest)][of]);
  }
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    std::copy_n(all, kWarp, known_[lane]);
    ++clock_[lane];
  }
}

void Warp::add_group(uint32_t pc, uint32_t mask) {
  if (!mask) return;
  if (!team_->policy.split)
    for (Group& group : groups_)
      if (group.pc == pc) {
        group.mask |= mask;
        return;
      }
  groups_.push_back({pc, mask});
}

// The one behind all others: lanes that have parted come together again where their ways meet. Or any.
bool Warp::pick(Group& group) {
  if (groups_.empty()) return false;
  auto it = team_->policy.split ? groups_.begin() + team_->random.below(groups_.size())
                                : std::min_element(groups_.begin(), groups_.end(),
                                                   [](const Group& a, const Group& b) { return a.pc < b.pc; });
  group = *it;
  *it = groups_.back();
  groups_.pop_back();
  return true;
}

void Warp::run() {
  for (Group group; pick(group);) run_group(group);
  const uint32_t waiting = exist_ & ~ended_ & ~at_barrier_;
  if (waiting || (at_barrier_ && ended_)) {
    now_ = waits_.empty() ? now_ : waits_[0].first;
    fail(static_cast<uint32_t>(std::countr_zero(waiting ? waiting : at_barrier_)), stuck());
  }
}

void Warp::run_group(Group group) {
  Team& team = *team_;
  const Instruction* const code = team.program.code.data();
  const bool split = team.policy.split;
  const auto limit_of = [&] {
    uint32_t limit = UINT32_MAX;
    if (!split)
      for (const Group& other : groups_) limit = std::min(limit, other.pc);
    return limit;
  };
  uint32_t limit = limit_of();
  for (;;) {
    if (group.pc >= limit) return add_group(group.pc, group.mask);
    const Instruction& at = code[group.pc];
    now_ = &at;
    uint32_t mask = group.mask;
    if (at.guard >= 0) mask &= predicate(at.guard) ^ (at.negated ? kAllLanes : 0);
    if (++team.steps > kMostSteps) fail(static_cast<uint32_t>(std::countr_zero(group.mask)), "a loop without an end");
    team.lane_steps += static_cast<uint64_t>(std::popcount(mask));
    if (mask) at.seen = true;
    if (at.flow == Flow::kPlain) {
      if (mask) at.run(*this, at, mask);
      ++group.pc;
      continue;
    }
    if (at.flow == Flow::kBranch) {
      const uint32_t stays = group.mask & ~mask;
      if (split && team.random.below(16) == 0 && std::popcount(group.mask) > 1) {
        // Part of the lanes comes later.
        const uint32_t later = static_cast<uint32_t>(team.random.next()) & group.mask;
        add_group(at.target, mask & later), add_group(group.pc + 1, stays & later);
        add_group(at.target, mask & ~later), add_group(group.pc + 1, stays & ~later);
        return;
      }
      if (!stays) {
        group.pc = at.target;
      } else if (!mask) {
        ++group.pc;
      } else {
        add_group(at.target, mask);
        group = {group.pc + 1, stays};
        limit = limit_of();
      }
      continue;
    }
    add_group(group.pc + 1, group.mask & ~mask);
    if (mask) {
      if (at.flow == Flow::kMeeting)
        arrive(at, group.pc, mask);
      else
        call_or_return(at, group.pc, mask);
    }
    return;
  }
}

void Warp::call_or_return(const Instruction& at, uint32_t pc, uint32_t mask) {
  const auto first = static_cast<uint32_t>(std::countr_zero(mask));
  if (at.flow == Flow::kBlockBarrier) {
    // An aligned barrier: all threads of a warp come to the same one.
    if ((at_barrier_ && barrier_pc_ != pc) || ended_)
      fail(first, ended_ ? "a barrier of the block after threads of its warp have ended"
                         : "a barrier of the block while others of the warp wait at another one");
    at_barrier_ |= mask, barrier_pc_ = pc;
    return;
  }
  if (at.flow == Flow::kCall) {
    for (uint32_t rest = mask; rest; rest &= rest - 1) stack_[std::countr_zero(rest)].push_back(pc + 1);
    return add_group(at.target, mask);
  }
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    if (!stack_[lane].empty()) {
      add_group(stack_[lane].back(), 1u << lane);
      stack_[lane].pop_back();
      continue;
    }
    ended_ |= 1u << lane;
    for (const Wait& wait : waits_)
      if (wait.mask >> lane & 1)
        fail(lane, "a thread ends for which others of its warp wait, with the mask " + hex(wait.mask));
  }
}

// Lanes come to a meeting, each with a mask.
void Warp::arrive(const Instruction& at, uint32_t pc, uint32_t lanes) {
  const char name = Names::text(at.name)[0];  // shfl, bar.warp; vote or redux
  const int32_t x = name == 's' ? at.x[5] : name == 'b' ? at.x[0] : at.x[2];
  while (lanes) {
    const auto first = static_cast<uint32_t>(std::countr_zero(lanes));
    const uint32_t* masks = source<uint32_t>(x);
    uint32_t same = 0;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
      same |= uint32_t{masks[lane] == masks[first]} << lane;
    }
    arrive_with(at, pc, same, masks[first]);
    lanes &= ~same;
  }
}

void Warp::arrive_with(const Instruction& at, uint32_t pc, uint32_t lanes, uint32_t mask) {
  const auto first = static_cast<uint32_t>(std::countr_zero(lanes));
  if (lanes & ~mask)
    fail(static_cast<uint32_t>(std::countr_zero(lanes & ~mask)),
         "the mask " + hex(mask) + " lacks the thread that has it");
  if (mask & ~exist_) fail(first, "the mask " + hex(mask) + " names threads that are not there");
  if (mask & ended_) fail(first, "the mask " + hex(mask) + " names threads that have ended");
  if (mask & at_barrier_) fail(first, "the mask " + hex(mask) + " names threads that wait at the block's barrier");
  for (uint32_t rest = lanes; rest; rest &= rest - 1) pc_[std::countr_zero(rest)] = pc;
  auto wait = std::find_if(waits_.begin(), waits_.end(),
                           [&](const Wait& w) { return w.first->name == at.name && w.mask == mask; });
  if (wait == waits_.end()) wait = waits_.insert(wait, {&at, mask, 0});
  wait->arrived |= lanes;
  if (wait->arrived != mask) return;
  const Wait done = *wait;
  waits_.erase(wait);
  complete(done);
}

void Warp::complete(const Wait& wait) {
  const Instruction* of_lane[kWarp] = {};
  for (uint32_t rest = wait.mask; rest; rest &= rest - 1) {
    const auto lane = std::countr_zero(rest);
    of_lane[lane] = &team_->program.code[pc_[lane]];
  }
  wait.first->meet(*this, of_lane, wait.mask);
  for (uint32_t rest = wait.mask; rest;) {
    const uint32_t pc = pc_[std::countr_zero(rest)];
    uint32_t same = 0;
    for (uint32_t left = rest; left; left &= left - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(left));
      same |= uint32_t{pc_[lane] == pc} << lane;
    }
    add_group(pc + 1, same);
    rest &= ~same;
  }
}

void Warp::leave_barrier() {
  std::fill_n(clock_, kWarp, clock_[0] + 1);
  groups_.assign(1, {barrier_pc_ + 1, at_barrier_});
  at_barrier_ = 0;
}

std::string Warp::stuck() const {
  std::string out = "threads that never meet: lanes " + hex(ended_) + " have ended, " + hex(at_barrier_) +
                    " wait at the block's barrier";
  for (const Wait& wait : waits_)
    out += ", " + hex(wait.arrived) + " at " + Names::text(wait.first->name) + " in line " +
           std::to_string(wait.first->line) + " with the mask " + hex(wait.mask);
  return out;
}

}  // namespace ptx
