"""bitsandbytes' optimizer classes. Each family is one rule here; 8bit, 32bit and Paged select its options."""

# The lambdas stand for argument lists, with bitsandbytes' names, order and defaults.
from lowtide.compat.bitsandbytes.optim.base import Class, family, variant

_BITS = ["optim_bits"]
_PAGED = ["is_paged"]


def _with_paged(base: Class, fixed: list[str]) -> list[Class]:
    """NAME8bit, NAME32bit, PagedNAME, PagedNAME8bit and PagedNAME32bit. fixed: arguments that classes with fixed bits lack;
    paged classes lack `is_paged`, too."""
    name = base.__name__
    return [
        *(variant(base, f"{name}{bits}bit", bits=bits, without=fixed) for bits in (8, 32)),
        variant(base, f"Paged{name}", paged=True, without=_PAGED),
        *(variant(base, f"Paged{name}{n}bit", bits=n, paged=True, without=[*fixed, *_PAGED]) for n in (8, 32)),
    ]


def _both(base: Class, without: list[str] = _BITS) -> list[Class]:
    """NAME8bit and NAME32bit."""
    return [variant(base, f"{base.__name__}{bits}bit", bits=bits, without=without) for bits in (8, 32)]


# In bitsandbytes, Adam and AdamW are one rule with decoupled weight decay and differ only in its default.
Adam = family(
    "Adam", "adamw",
    lambda params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, amsgrad=False, optim_bits=32, args=None,
    min_8bit_size=4096, is_paged=False, **options: None,
    "`lowtide.AdamW` without weight decay unless asked: what bitsandbytes' Adam computes. amsgrad, which it ignores, is "
    "honoured.",
)  # fmt: skip
Adam8bit, Adam32bit = _both(Adam, [])
PagedAdam = variant(Adam, "PagedAdam", paged=True)
PagedAdam8bit = variant(Adam, "PagedAdam8bit", bits=8, paged=True)
PagedAdam32bit = variant(Adam, "PagedAdam32bit", bits=32, paged=True)

AdamW = variant(Adam, "AdamW", weight_decay=1e-2)
AdamW.__doc__ = "`lowtide.AdamW`. amsgrad, which bitsandbytes ignores, is honoured."
AdamW8bit, AdamW32bit, PagedAdamW, PagedAdamW8bit, PagedAdamW32bit = _with_paged(AdamW, [])

AdEMAMix = family(
    "AdEMAMix", "ademamix",
    lambda params, lr=1e-3, betas=(0.9, 0.999, 0.9999), alpha=5.0, t_alpha=None, t_beta3=None, eps=1e-8,
    weight_decay=1e-2, optim_bits=32, min_8bit_size=4096, is_paged=False, **options: None,
    "`lowtide.AdEMAMix`. The 32bit classes work, too.",
)  # fmt: skip
AdEMAMix8bit, AdEMAMix32bit, PagedAdEMAMix, PagedAdEMAMix8bit, PagedAdEMAMix32bit = _with_paged(AdEMAMix, _BITS)

Lion = family(
    "Lion", "lion",
    lambda params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0, optim_bits=32, args=None, min_8bit_size=4096,
    is_paged=False, **options: None,
    "`lowtide.Lion`: decoupled weight decay, as bitsandbytes has it since 0.50.",
)  # fmt: skip
Lion8bit, Lion32bit, PagedLion, PagedLion8bit, PagedLion32bit = _with_paged(Lion, _BITS)

# max_unorm limits the length of an update to max_unorm times that of the parameter. It only shortens updates, whereas the
# papers' trust ratio also lengthens them.
LAMB = family(
    "LAMB", "lamb",
    lambda params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, amsgrad=False,
    adam_w_mode=True, optim_bits=32, args=None, min_8bit_size=4096, max_unorm=1.0, **options: None,
    "`lowtide.LAMB` with max_unorm, in 8 bits, too, where bitsandbytes has it without effect. bias_correction and "
    "adam_w_mode, which it ignores, must be True; amsgrad, likewise, False.",
    {"bias_correction": (True, ""), "adam_w_mode": (True, ": weight decay is decoupled"), "amsgrad": (False, "")},
)  # fmt: skip
LAMB8bit, LAMB32bit = _both(LAMB)
LARS = family(
    "LARS", "lars",
    lambda params, lr, momentum=0, dampening=0, weight_decay=0, nesterov=False, optim_bits=32, args=None,
    min_8bit_size=4096, max_unorm=0.02, **options: None,
    "`lowtide.LARS` with max_unorm, in 8 bits, too, where bitsandbytes has it without effect. dampening and nesterov, "
    "which it ignores, are honoured.",
)  # fmt: skip
LARS8bit, LARS32bit = _both(LARS)
PytorchLARS = variant(LARS, "PytorchLARS", bits=32, without=["optim_bits", "args", "min_8bit_size"], lr=0.01)

SGD = family(
    "SGD", "sgd",
    lambda params, lr, momentum=0, dampening=0, weight_decay=0, nesterov=False, optim_bits=32, args=None,
    min_8bit_size=4096, **options: None,
    "`lowtide.SGD`. dampening and nesterov, which bitsandbytes ignores, are honoured; without momentum, which it "
    "refuses, there is no state.",
)  # fmt: skip
SGD8bit, SGD32bit = _both(SGD)
RMSprop = family(
    "RMSprop", "rmsprop",
    lambda params, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=False, optim_bits=32, args=None,
    min_8bit_size=4096, **options: None,
    "`lowtide.RMSprop`. momentum, which bitsandbytes ignores, is honoured; so is centered, which it refuses.",
)  # fmt: skip
RMSprop8bit, RMSprop32bit = _both(RMSprop)
Adagrad = family(
    "Adagrad", "adagrad",
    lambda params, lr=1e-2, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10, optim_bits=32, args=None,
    min_8bit_size=4096, **options: None,
    "`lowtide.Adagrad`. lr_decay and initial_accumulator_value, which bitsandbytes refuses, are honoured.",
)  # fmt: skip
Adagrad8bit = variant(Adagrad, "Adagrad8bit", bits=8, optim_bits=8)
Adagrad32bit = variant(Adagrad, "Adagrad32bit", bits=32)
