"""The promises about what steps compute, and of which parameters and gradients."""

from __future__ import annotations

from trust.checks import COMPARED, CROSS, DIFFER, UNIT, Promise, cpp, python

STEPS = (
    Promise(
        "T2", "Scalar, AVX2, AVX-512 and CUDA code give the same bits.",
        "Every rule, format and type steps on every instruction set; every float32 is encoded on each; CUDA kernels "
        "run on an "
        "emulated GPU. The tolerance is 0 ULP.",
        (
            cpp(CROSS, "Targets.AllGiveTheBitsOfScalarCode",
                r"(?P<runs>\d+) comparisons after 3 steps, (?P<bytes>\d+) bytes, (?P<differ>\d+) differ",
                "CPU: {differ} of {bytes:,} bytes differ in {runs:,} comparisons"),
            cpp(UNIT, "Dynamic8Sweep.IsNearestForEveryFloatOnEveryTarget",
                r"signed *: (?P<floats>\d+) floats, (?P<differ>\d+) codes differ",
                "{differ} of {floats:,} codes differ from the nearest"),
            cpp("lowtide_cuda_kernel_tests", "CudaSteps.GiveTheBitsOfTheCpu",
                r"(?P<params>\d+) parameters stepped .* (?P<bytes>\d+) bytes compared, (?P<differ>\d+) differ",
                "CUDA: {differ} of {bytes:,} bytes differ"),
        ),
    ),
    Promise(
        "T8", "The C interface ends no process and throws nothing.",
        "Null pointers, wrong numbers, structs of other versions, refused devices and a lost device, called from C11.",
        (
            cpp(CROSS, "CApi.*:CApiSign.*", figure="{passed} tests of refusals in a C11 caller's process, which lives"),
            cpp("lowtide_cuda_host_tests", "CudaErrors.AnyCallMayFail",
                r"(?P<refused>\d+) calls refused, one at a time",
                "CUDA: {refused} calls refused, each an error"),
        ),
    ),
    Promise(
        "T9", "A gradient that is not finite skips the step (or raises) and poisons nothing.",
        "One NaN, infinity or huge value, at every place of a block, in every rule and format.",
        (
            cpp(CROSS, "NonFinite.*",
                r"(?P<bad>\d+) steps with one bad gradient, (?P<skipped>\d+) skipped, (?P<changed>\d+) bytes changed",
                "{bad:,} bad gradients, {skipped:,} steps skipped, {changed} bytes changed"),
            python("engine/test_promises.py::test_nonfinite_gradients_poison_nothing",
                   pattern=r"injected (?P<bad>\d+), skipped (?P<skipped>\d+), unchanged True, "
                   r"blocks poisoned (?P<poisoned>\d+)",
                   figure="PyTorch: {bad} injected, {skipped} skipped, {poisoned} blocks poisoned"),
        ),
    ),
    Promise(
        "T15",
        "Threads: two optimizers are independent; a second thread in one is refused, and a save holds one whole step.",
        "Two threads in one optimizer; one that steps beside one that saves; optimizers side by side. (`make tsan` "
        "runs "
        "them under the thread sanitizer.)",
        (
            cpp(CROSS, "Saves.BesideStepsHoldOneWholeStep",
                r"(?P<saves>\d+) checkpoints of (?P<steps>\d+) steps, wrong (?P<wrong>\d+)",
                "{saves} checkpoints saved beside {steps} different steps, {wrong} wrong"),
            cpp(CROSS, "Concurrency.*", r"(?P<taken>\d+) steps taken, (?P<refused>\d+) refused",
                "{taken} steps taken, {refused} refused"),
            python("engine/test_hard_gradients.py::test_two_threads_at_one_optimizer",
                   pattern=r"steps (?P<steps>\d+), refused (?P<refused>\d+), other errors (?P<others>\d+)",
                   figure="PyTorch: {steps} steps, {refused} refused, {others} other errors"),
        ),
    ),
    Promise(
        "T16",
        "The same seed gives the same bits, whatever the threads, the order of parameters, the ranks or the mesh.",
        "1 to 8 threads, shuffled parameters, rows split at random, 11 meshes of real processes.",
        (
            python("engine/test_promises.py::test_threads_and_order_never_change_a_bit",
                   pattern=r"runs bit-equal (?P<equal>\d+)/(?P<all>\d+)",
                   figure="{equal} of {all} runs bit-equal"),
            cpp(CROSS, "Targets.DoNotDependOnTheOrderOfParameters:Targets.DoNotDependOnHowRowsAreSplit:"
                "Rounding.GivesTheSameBitsWhereverStateIsAndWhoeverSteps",
                r"(?P<differ>\d+) differ$", "order, split rows, rounding: {differ} bytes differ"),
            python("distributed/test_distributed_meshes.py::test_any_mesh_gives_the_same_bits",
                   pattern=r"(?P<meshes>\d+) meshes, \d+ parameters, (?P<bytes>\d+) bytes compared, (?P<differ>\d+) differ",
                   figure="{meshes} meshes: {differ} of {bytes:,} bytes differ"),
        ),
    ),
    Promise(
        "T17", "Parameters of more than 2³¹ and 2³² elements are stepped to the last.",
        "One parameter of 2³¹ + 4097 elements with int8 state, every element checked; one of 2³² + 4097 elements, "
        "whose "
        "addresses are many views of one window of memory, with its state in RAM and in a file.",
        (
            cpp(CROSS, "LargeTensor.IsSteppedToItsLastElement",
                r"(?P<elements>\d+) elements stepped, (?P<wrong>\d+) wrong",
                "{elements:,} elements, {wrong} wrong"),
            cpp(CROSS, "LargeTensor.IndicesGoBeyond32BitsInRam:LargeTensor.IndicesGoBeyond32BitsOnDisk",
                r"stepped twice, state in (?:RAM|a file): (?P<wrong>\d+) wrong, last index updated: yes",
                "2³² + 4097 elements, {matches} places of state: {wrong} wrong, last index updated"),
            cpp(CROSS, "Rounding.IndicesGoOnBeyond32Bits",
                r"(?P<bytes>\d+) bytes at indices .*, (?P<differ>\d+) differ",
                "around 2³²: {differ} of {bytes:,} bytes differ"),
        ),
    ),
    Promise(
        "T18", "Any size works: none, 0-d, one element, no multiple of a block.",
        "Sizes around blocks and rows, contiguous and strided, against the same values in one piece.",
        (
            python("engine/test_layouts.py", figure="{passed} shapes, types and layouts pass"),
            cpp(CROSS, "NormRules.TakeParametersOfAnySize", r"(?P<blocks>\d+) blocks, the last found",
                "norms over {blocks:,} blocks"),
        ),
    ),
    Promise(
        "T19", "Any layout of parameters and gradients is stepped rightly or refused by name, never wrong in silence.",
        "Random strides, gaps, stride 0, shared addresses, overlaps; gradients that are sparse, lazy, of another type "
        "or gone.",
        (
            cpp(CROSS, "Strided.StepsAsAContiguousCopyDoes:Strided.RefusesParametersThatShareAddresses",
                r"(?P<correct>\d+) correct.*, (?P<refused>\d+) refused, wrong=(?P<wrong>\d+)",
                "{correct} correct, {refused} refused, {wrong} wrong"),
            python("engine/test_bad_input.py", figure="PyTorch: {passed} tests of refusals pass"),
        ),
    ),
    Promise(
        "T20", "Tied parameters step once; parameters that move, change type or memory are followed or refused.",
        "Parameters are swapped, moved and retyped between any two steps.",
        (
            python("engine/test_moved_parameters.py", "engine/test_which_parameters.py", "engine/test_rebinding.py",
                   figure="{passed} tests pass"),
        ),
    ),
    Promise(
        "T22", "A coordinate whose gradient is zero never moves (without weight decay).",
        "100,000 steps of zero gradients in every rule and format, alone and beside others.",
        (
            cpp(CROSS, "Rest.ZeroGradientsNeverMoveAParameter",
                r"(?P<all>\d+) combinations, (?P<steps>\d+) steps, (?P<drifted>\d+) bytes drifted",
                "{all} combinations, {steps:,} steps, {drifted} bytes drifted"),
        ),
    ),
    Promise(
        "T23", "Gradients and eps times a power of two give the same weights, bit for bit.",
        "Every rule and format, gradients times 2^-39 to 2^60 (rules without second moments: from 2^-90).",
        (
            cpp(CROSS, "Scale.PowersOfTwoChangeNoBit", r"scaled runs: (?P<runs>\d+), failing (?P<failing>\d+)",
                "{runs:,} runs, {failing} differ"),
        ),
    ),
    Promise(
        "T24",
        "No update is far above exact Adam's largest, 7.27 lr, whatever the gradients: 3.5 times that in 8 bits.",
        "A search climbs over sequences of gradients, beginning with the worst for exact Adam; it searches in "
        "bitsandbytes and "
        "torchao, too. Gradients over four decades, and spikes, in every format.",
        (
            python("optimizers/test_bounded_updates.py",
                   pattern=r"fp32: the largest update found is (?P<most_f>[\d.]+)|dynamic8: the.* is (?P<most_d>[\d.]+) lr,"
                   r"|bitsandbytes: the.* is (?P<most_b>[\d.]+)|torchao: the.* is (?P<most_t>[\d.]+)",
                   figure="largest found, in lr: fp32 {most_f}, dynamic8 {most_d}; bitsandbytes {most_b}, torchao {most_t:,}"),
            cpp(CROSS, "Average.NoUpdateIsMuchLargerThanAdams",
                r"largest update / lr (?P<most_lr>[\d.]+), (?P<most_times>[\d.]+) of exact Adam's",
                "without search: {most_lr} lr; at most {most_times} times exact Adam's"),
        ),
    ),
    Promise(
        "T27", "A step with lr=0, and asking for the state, leave every bit as it was.",
        "Every rule, format, rounding and residual; state dicts asked for as distributed checkpoints do.",
        (
            cpp(CROSS, "Rest.LearningRateZeroChangesNoBit:Master.StepsOfLengthZeroChangeNothing",
                r"(?P<params>\d+) parameters, .* (?P<changed>\d+) changed", "{params:,} parameters, {changed} changed"),
            python("distributed/test_distributed_checkpoints.py::test_asking_for_the_state_changes_nothing", pattern=COMPARED,
                   figure=f"distributed checkpoints: {DIFFER}"),
        ),
    ),
)  # fmt: skip
