// Steps whose result is signs, for a vote with other optimizers, and steps by what the vote gives.
#include "core/sizes.h"
#include "optim/optimizer_impl.h"

namespace lowtide {

int64_t Optimizer::sign_count() const { return impl_->sign_offset(impl_->slots.size()); }

int64_t Optimizer::sign_offset(int64_t param) const {
  impl_->slot_at(param);
  return impl_->sign_offset(static_cast<size_t>(param));
}

StepResult Optimizer::ballots(std::span<const Gradient> grads, const SignBuffer& out, bool zero_is_plus,
                              const StepOptions& options) {
  const Exclusive guard(impl_->busy);
  return impl_->ballots(grads, out, zero_is_plus, options);
}

void Optimizer::apply_signs(const SignBuffer& signs, void* stream) {
  const Exclusive guard(impl_->busy);
  impl_->apply_signs(signs, stream);
}

int64_t Optimizer::Impl::sign_offset(size_t param) const {
  int64_t sum = 0;
  for (size_t i = 0; i < param; ++i) sum += round_up(slots[i].layout.numel, kSignAlignment);
  return sum;
}

void Optimizer::Impl::check_signs(const SignBuffer& signs, bool presence, void* stream) const {
  const int64_t count = sign_offset(slots.size());
  LT_REQUIRE(count == 0 || signs.bits, "got no memory for the bits of %lld signs", ll(count));
  LT_REQUIRE(count == 0 || !presence || signs.presence, "got no memory for the presence of %lld signs", ll(count));
  LT_REQUIRE(!stream || backend->device(), "got a stream for CPU parameters, wanted nullptr");
}

void Optimizer::Impl::clear_signs(const SignBuffer& signs, void* stream) {
  const int64_t count = sign_offset(slots.size());
  const auto clear = [&](std::byte* at, int64_t bytes) {
    if (bytes == 0) return;
    if (Device* const device = backend->device())
      device->fill(stream, at, 0, 1, bytes);
    else
      std::memset(at, 0, static_cast<size_t>(bytes));
  };
  clear(signs.bits, sign_bytes(count));
  clear(signs.presence, presence_bytes(count));
}

StepResult Optimizer::Impl::ballots(std::span<const Gradient> grads, const SignBuffer& out, bool zero_is_plus,
                                    const StepOptions& options) {
  LT_REQUIRE(!needs_norms(),
             "got ballots of %s, wanted a rule that needs no norms of whole parameters: adamw, lion, sgd ...",
             name_of(rule).c_str());
  check_signs(out, true, options.stream);
  LT_REQUIRE(!out.zeros, "got memory for the zeros of a ballot, which has none, wanted nullptr");
  targets.clear();
  int64_t first = 0;
  for (const Parameter& slot : slots) {
    targets.push_back({out.bits, out.presence, first, zero_is_plus});
    first += round_up(slot.layout.numel, kSignAlignment);
  }
  const struct Voting {  // whatever happens, the next step moves parameters
    Voting(const SignBuffer*& of, const SignBuffer& to) : voting(of) { voting = &to; }
    ~Voting() { voting = nullptr; }
    const SignBuffer*& voting;
  } scope(voting, out);
  return step(grads, options);
}

void Optimizer::Impl::apply_signs(const SignBuffer& signs, void* stream) {
  check_signs(signs, false, stream);
  std::vector<ApplyItem> moves;
  int64_t first = 0;
  for (const Parameter& slot : slots) {
    if (slot.layout.numel == 0) continue;
    const Hyper& h = groups[static_cast<size_t>(slot.group)].hyper;
    moves.push_back({slot.dtype, first, slot.data, &slot.layout, signs.bits, signs.zeros, signs.presence,
                     static_cast<float>(h.lr), static_cast<float>(h.lr * h.weight_decay)});
    first += round_up(slot.layout.numel, kSignAlignment);
  }
  // Parameters that share memory move one after another.
  if (parameters_overlap(false))
    for (const ApplyItem& move : moves) backend->apply_signs({&move, 1}, threads, stream);
  else
    backend->apply_signs(moves, threads, stream);
  if (Device* const device = backend->device()) stepped = device->record(stream);
}

}  // namespace lowtide
