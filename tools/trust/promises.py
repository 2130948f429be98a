"""The promises of TRUST.md, each with what tests it."""

from __future__ import annotations

from trust.checks import Check, Promise, cpp, python

CROSS = "lowtide_cross_tests"
UNIT = "lowtide_tests"
NTH_FAILURE = (
    r"points +(?P<points>\d+): failed +(?P<failed>\d+) .*wrong (?P<wrong>\d+); unusable (?P<unusable>\d+)"
    r".*bytes leaked (?P<leaked>\d+)"
)
NTH_FAILED = (
    "{points} points, {failed} calls failed: {wrong} blocks wrong, {unusable} optimizers unusable, {leaked} bytes "
    "leaked"
)
COMPARED = r"(?P<bytes>[\d,]+) bytes compared, (?P<differ>\d+) differ"
DIFFER = "{differ} of {bytes:,} bytes differ"

PROMISES = (
    Promise(
        "T1", "State in RAM, on a disk or on a device: the same bits, whatever the budget.",
        "Random models, budgets, rules and formats take 200 steps in RAM and with the budget. Device budgets run on a "
        "fake device "
        "that moves nothing before it must.",
        (
            cpp(CROSS, "Tiers.DiskAndRamGiveTheSameBits",
                r"(?P<plans>\d+) plans \((?P<disk>\d+) with state on disk\).*: (?P<bytes>\d+) bytes compared, "
                r"(?P<differ>\d+) differ",
                "{plans} plans ({disk} on disk): {differ} of {bytes:,} bytes differ"),
            cpp(CROSS, "Device.EveryBudgetGivesTheBitsOfTheHost",
                r"(?P<plans>\d+) plans .* differing bytes (?P<differ>\d+) of (?P<bytes>\d+)",
                "{plans} plans of device memory: {differ} of {bytes:,} bytes differ"),
        ),
    ),
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
        "T3", "A process killed anywhere leaves the old or the new checkpoint, whole.",
        "A child is killed before and after every system call of steps and saves, and at random times; the file is "
        "then "
        "compared with every state that it may hold.",
        (
            cpp(UNIT, "CheckpointFault.AKilledProcessLeavesTheOldOrTheNew",
                r"killed at (?P<points>\d+)/\d+ points .*wrong (?P<wrong>\d+);", "save: {points} kills, {wrong} wrong"),
            cpp(CROSS, "Killed.AtEveryCallThatWrites",
                r"killed at (?P<points>\d+)/\d+ points.*wrong (?P<wrong>\d+); scratch files left (?P<left>\d+)",
                "steps and saves: {points} kills, {wrong} wrong, {left} scratch files left"),
            cpp(CROSS, "Killed.AtAnyTime", r"killed (?P<points>\d+)/\d+ times.*: wrong (?P<wrong>\d+);",
                "at random times: {points} kills, {wrong} wrong"),
        ),
    ),
    Promise(
        "T4", "Checksums find all damage of checkpoints and of the scratch file.",
        "Each bit of a checkpoint is flipped, pieces are swapped or outdated; records on the disk are flipped, "
        "swapped or lost.",
        (
            cpp(UNIT, "Checkpoint.EveryFlippedBitAndEveryLengthIsFound:Checkpoint.APieceInAnothersPlaceIsFound",
                r"(?:flipped bits|lengths|files|swapped pieces|older checkpoint) (?P<found>\d+)/(?P<all>\d+)",
                "checkpoints: {found:,} of {all:,} found"),
            cpp(UNIT, "StateStore.DamageOnTheDiskIsSeen", r"(?:bits|chunks|writes) (?P<found>\d+)/(?P<all>\d+)",
                "disk: {found} of {all} found"),
        ),
    ),
    Promise(
        "T5", "A failed system call is an error; each block of a parameter and its state is fully old or fully new.",
        "The n-th call of steps, saves and loads fails (EIO, ENOSPC, EINTR, short transfers), once and from then on, "
        "for every n.",
        (
            cpp(CROSS, "Faults.*", NTH_FAILURE, NTH_FAILED),
            cpp(UNIT, "ScratchFaults.TransfersMoveEverythingOrThrow",
                r"points (?P<points>\d+), errors .* bytes wrong (?P<wrong>\d+), descriptors left (?P<left>\d+)",
                "transfers: {points} points, {wrong} bytes wrong, {left} descriptors left"),
        ),
    ),
    Promise(
        "T6", "A failed fsync is never taken for success.",
        "fsync of the file and of its directory fails once, at each call of a save.",
        (
            cpp(UNIT, "CheckpointFault.AnyFailedCallLeavesTheOldOrTheNew",
                r"accepted after a failed fsync (?P<accepted>\d+)/(?P<all>\d+)",
                "accepted after a failed fsync: {accepted} of {all}"),
        ),
    ),
    Promise(
        "T7", "Memory that is refused is an error; the optimizer stays usable.",
        "The n-th allocation of construction, steps, saves and loads fails, for every n; so does each call for device "
        "memory.",
        (
            cpp("lowtide_allocation_tests", "Allocation.*", NTH_FAILURE, NTH_FAILED),
            cpp(CROSS, "DeviceFaults.AnyCallMayFail",
                r"^\w+: (?P<failed>\d+) calls failed|differing bytes (?P<differ>\d+) of (?P<bytes>\d+)",
                "device: {failed} calls failed, {differ} of {bytes:,} bytes differ"),
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
            python("test_promises.py::test_nonfinite_gradients_poison_nothing",
                   pattern=r"injected (?P<bad>\d+), skipped (?P<skipped>\d+), unchanged True, blocks poisoned (?P<poisoned>\d+)",
                   figure="PyTorch: {bad} injected, {skipped} skipped, {poisoned} blocks poisoned"),
        ),
    ),
    Promise(
        "T10", "A malformed file, message or state dict is refused in bounded memory.",
        "Wrong headers with right checksums, hostile headers under a limit of memory, random bytes, garbage at every "
        "place of a "
        "state dict.",
        (
            cpp(UNIT,
                "Checkpoint.AWrongHeaderIsRefusedThoughItsChecksumsAreRight:Checkpoint.RandomBytesAreNotACheckpoint:"
                "CheckpointMemory.AHostileHeaderTakesBoundedMemory",
                r"wrong headers refused: (?P<wrong>\d+)|random files refused: (?P<random>\d+)|bounded memory: "
                r"(?P<hostile>\d+)",
                "{wrong} wrong headers, {random} random files and {hostile} headers of 16 MiB refused"),
            Check(".venv/bin/python tools/fuzz.py", r"^\w+: (?P<runs>[\d,]+) executions, (?P<crashes>\d+) crashes",
                  "coverage-guided fuzzing of {matches} parsers: {runs:,} executions, {crashes} crashes"),
            python("test_state_dict_garbage.py", pattern=r"(?P<refused>\d+) refused, (?P<taken>\d+) taken, all finite",
                   figure="state dicts: {refused} refused, {taken} harmless"),
        ),
    ),
    Promise(
        "T11", "Nothing of ours is pickled: checkpoints hold no code, state dicts load with weights_only=True.",
        "The opcodes of a saved state dict name only tensors of torch; the checkpoint file is JSON and numbers (T10).",
        (
            python("test_state_dict.py::test_only_plain_tensors_and_no_two_share_memory",
                   pattern=r"tensors (?P<tensors>\d+), overlaps (?P<overlaps>\d+)",
                   figure="{tensors} plain tensors, classes beside torch's 0, shared memory {overlaps}"),
        ),
    ),
    Promise(
        "T12", "Scratch files have no name, mode 0600, and are gone after kill -9; planted files are refused.",
        "Symbolic links, hard links, FIFOs and directories in place of the lock; processes killed with state on the "
        "disk.",
        (
            cpp(UNIT,
                "DirectoryLock.PlantedFilesAreRefused:ScratchFile.BadDirectoriesAreRefused:*Everywhere.NothingIsLeftNorOpen*",
                figure="{passed} tests of planted files and modes pass"),
            cpp(UNIT, "ScratchFile.NothingIsLeftByAKilledProcess",
                r"processes killed (?P<killed>\d+), files left (?P<left>\d+)",
                "{killed} processes killed, {left} files left"),
        ),
    ),
    Promise(
        "T13", "Two processes never share a scratch directory; the second is told who has it.",
        "Six processes race for one directory.",
        (
            cpp(UNIT, "DirectoryLock.NeverTwoOwners", r"attempts (?P<attempts>\d+) .*double owners (?P<double>\d+)",
                "{attempts} attempts, {double} double owners"),
        ),
    ),
    Promise(
        "T14", "After a device is lost, calls fail by name and state in host memory can still be saved.",
        "The device is lost at a random call of random optimizers.",
        (
            cpp(CROSS, "LostDevice.HostMemoryStaysReadable",
                r"(?P<losses>\d+) losses, .*differing bytes (?P<differ>\d+) of (?P<bytes>\d+); .*; (?P<saved>\d+) "
                r"optimizers saved",
                "{losses} losses: {differ} of {bytes:,} bytes read differ, {saved} optimizers saved and loaded"),
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
            python("test_hard_gradients.py::test_two_threads_at_one_optimizer",
                   pattern=r"steps (?P<steps>\d+), refused (?P<refused>\d+), other errors (?P<others>\d+)",
                   figure="PyTorch: {steps} steps, {refused} refused, {others} other errors"),
        ),
    ),
    Promise(
        "T16",
        "The same seed gives the same bits, whatever the threads, the order of parameters, the ranks or the mesh.",
        "1 to 8 threads, shuffled parameters, rows split at random, 11 meshes of real processes.",
        (
            python("test_promises.py::test_threads_and_order_never_change_a_bit",
                   pattern=r"runs bit-equal (?P<equal>\d+)/(?P<all>\d+)",
                   figure="{equal} of {all} runs bit-equal"),
            cpp(CROSS, "Targets.DoNotDependOnTheOrderOfParameters:Targets.DoNotDependOnHowRowsAreSplit:"
                "Rounding.GivesTheSameBitsWhereverStateIsAndWhoeverSteps",
                r"(?P<differ>\d+) differ$", "order, split rows, rounding: {differ} bytes differ"),
            python("test_distributed_meshes.py::test_any_mesh_gives_the_same_bits",
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
            python("test_layouts.py", figure="{passed} shapes, types and layouts pass"),
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
            python("test_bad_input.py", figure="PyTorch: {passed} tests of refusals pass"),
        ),
    ),
    Promise(
        "T20", "Tied parameters step once; parameters that move, change type or memory are followed or refused.",
        "Parameters are swapped, moved and retyped between any two steps.",
        (
            python("test_moved_parameters.py", "test_which_parameters.py", "test_rebinding.py",
                   figure="{passed} tests pass"),
        ),
    ),
    Promise(
        "T21", "Save, load, step = step without the save: bit for bit, across tiers, ranks and files of before.",
        "State dicts and files of every rule and format, onto other budgets and other meshes; committed hashes of "
        "files and steps "
        "say that an older checkpoint reads as it did.",
        (
            python("test_state_dict.py::test_resumed_run_equals_the_uninterrupted_one",
                   "test_memory.py::test_files_go_from_any_tier_to_any",
                   figure="{passed} resumptions bit-equal"),
            python("test_distributed_checkpoints.py::test_a_checkpoint_goes_to_any_mesh", pattern=COMPARED,
                   figure=f"meshes: {DIFFER}"),
            cpp(CROSS, "GoldenResults.*",
                r"(?P<cells>\d+) cells compared.* (?P<differ>\d+) differ, (?P<missing>\d+) missing",
                "{cells:,} committed hashes, {differ} differ"),
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
            python("test_bounded_updates.py",
                   pattern=r"fp32: the largest update found is (?P<most_f>[\d.]+)|dynamic8: the.* is (?P<most_d>[\d.]+) lr,"
                   r"|bitsandbytes: the.* is (?P<most_b>[\d.]+)|torchao: the.* is (?P<most_t>[\d.]+)",
                   figure="largest found, in lr: fp32 {most_f}, dynamic8 {most_d}; bitsandbytes {most_b}, torchao {most_t:,}"),
            cpp(CROSS, "Average.NoUpdateIsMuchLargerThanAdams",
                r"largest update / lr (?P<most_lr>[\d.]+), (?P<most_times>[\d.]+) of exact Adam's",
                "without search: {most_lr} lr; at most {most_times} times exact Adam's"),
        ),
    ),
    Promise(
        "T25", "Memory is what the report says, and all of it comes back.",
        "Reports against plans and against the pages that the system has mapped; 100 optimizers made and let go.",
        (
            cpp(CROSS, "Lifecycle.AHundredOptimizersLeaveNoMemoryBehind",
                r"(?P<made>\d+) optimizers of .*grew by (?P<grown>-?\d+) bytes",
                "{made} optimizers: memory grew by {grown} bytes"),
            cpp(UNIT, "Planning.BytesAreThoseOfTheReport",
                r"(?P<fit>\d+) of \d+ random optimizers fit .* off by (?P<off>\d+) at most",
                "{fit} random optimizers: RAM, disk and traffic off by {off} bytes"),
        ),
    ),
    Promise("T26", "Wear of the disk is counted.", "No test yet.", ()),
    Promise(
        "T27", "A step with lr=0, and asking for the state, leave every bit as it was.",
        "Every rule, format, rounding and residual; state dicts asked for as distributed checkpoints do.",
        (
            cpp(CROSS, "Rest.LearningRateZeroChangesNoBit:Master.StepsOfLengthZeroChangeNothing",
                r"(?P<params>\d+) parameters, .* (?P<changed>\d+) changed", "{params:,} parameters, {changed} changed"),
            python("test_distributed_checkpoints.py::test_asking_for_the_state_changes_nothing", pattern=COMPARED,
                   figure=f"distributed checkpoints: {DIFFER}"),
        ),
    ),
)  # fmt: skip
