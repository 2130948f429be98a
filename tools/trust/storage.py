"""The promises about state where it is kept: memory, disk, devices, checkpoints."""

from __future__ import annotations

from trust.checks import COMPARED, CROSS, DIFFER, UNIT, Check, Promise, cpp, python

NTH_FAILURE = (
    r"points +(?P<points>\d+): failed +(?P<failed>\d+) .*wrong (?P<wrong>\d+); unusable (?P<unusable>\d+)"
    r".*bytes leaked (?P<leaked>\d+)"
)
NTH_FAILED = (
    "{points} points, {failed} calls failed: {wrong} blocks wrong, {unusable} optimizers unusable, {leaked} bytes "
    "leaked"
)

STORAGE = (
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
        "T3", "A process killed anywhere, or a power failure, leaves the old or the new checkpoint, whole.",
        "A child is killed before and after every system call of steps and saves, and at random times; the file "
        "is then compared with every state that it may hold. In memory, the power fails at every call: unsynced sectors and "
        "names are kept, lost, kept in part or torn.",
        (
            cpp(UNIT, "CheckpointFault.AKilledProcessLeavesTheOldOrTheNew",
                r"killed at (?P<points>\d+)/\d+ points .*wrong (?P<wrong>\d+);", "save: {points} kills, {wrong} wrong"),
            cpp(UNIT, "CheckpointPower.AFailureLeavesTheOldOrTheNew",
                r"power failures: (?P<points>\d+) points, (?P<images>\d+) images:.* wrong (?P<wrong>\d+)",
                "power failures: {points} points, {images:,} survivors, {wrong} wrong"),
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
        "T10", "A malformed file, message or state dict is refused in bounded memory.",
        "Wrong headers with right checksums, hostile headers under a limit of memory, random bytes, garbage at every "
        "place of a state dict. `make fuzz` runs coverage-guided fuzzers until each has 10,000,000 executions, and keeps "
        "count.",
        (
            cpp(UNIT,
                "Checkpoint.AWrongHeaderIsRefusedThoughItsChecksumsAreRight:Checkpoint.RandomBytesAreNotACheckpoint:"
                "CheckpointMemory.AHostileHeaderTakesBoundedMemory",
                r"wrong headers refused: (?P<wrong>\d+)|random files refused: (?P<random>\d+)|bounded memory: "
                r"(?P<hostile>\d+)",
                "{wrong} wrong headers, {random} random files and {hostile} headers of 16 MiB refused"),
            Check("python3 tools/fuzz.py --report", r"^\w+: (?P<runs>[\d,]+) executions, (?P<crashes>\d+) crashes",
                  "coverage-guided fuzzing of {matches} parsers: {runs:,} executions, {crashes} crashes"),
            python("state/test_state_dict_garbage.py", pattern=r"(?P<refused>\d+) refused, (?P<taken>\d+) taken, all finite",
                   figure="state dicts: {refused} refused, {taken} harmless"),
        ),
    ),
    Promise(
        "T11", "Nothing of ours is pickled: checkpoints hold no code, state dicts load with weights_only=True.",
        "The opcodes of a saved state dict name only tensors of torch; the checkpoint file is JSON and numbers (T10).",
        (
            python("state/test_state_dict.py::test_only_plain_tensors_and_no_two_share_memory",
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
        "T21", "Save, load, step = step without the save: bit for bit, across tiers, ranks and files of before.",
        "State dicts and files of every rule and format, onto other budgets and other meshes; committed hashes of "
        "files and steps "
        "say that an older checkpoint reads as it did.",
        (
            python("state/test_state_dict.py::test_resumed_run_equals_the_uninterrupted_one",
                   "memory/test_memory.py::test_files_go_from_any_tier_to_any",
                   figure="{passed} resumptions bit-equal"),
            python("distributed/test_distributed_checkpoints.py::test_a_checkpoint_goes_to_any_mesh", pattern=COMPARED,
                   figure=f"meshes: {DIFFER}"),
            cpp(CROSS, "GoldenResults.*",
                r"(?P<cells>\d+) cells compared.* (?P<differ>\d+) differ, (?P<missing>\d+) missing",
                "{cells:,} committed hashes, {differ} differ"),
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
    Promise(
        "T26",
        "Wear of the disk is counted and bounded: report()['written_bytes'] is what reaches the file, once a step.",
        "Every write of a step is counted at the file, in three rules and formats, and compared with the report.",
        (
            cpp(CROSS, "Wear.WrittenBytesAreWhatTheFileTakes",
                r"reported (?P<reported>\d+), taken by files (?P<taken>\d+) bytes; write amplification at most "
                r"(?P<most_a>[\d.]+); 600 TB are (?P<steps>\d+) steps",
                "{reported:,} bytes reported, {taken:,} taken by files; write amplification {most_a}; a drive of 600 "
                "TBW "
                "takes {steps:,} steps of AdamW on 7e9 parameters with fp32 state"),
        ),
    ),
    Promise(
        "T28",
        "A save beside steps writes the file of its call, bit for bit, in bounded memory, or leaves the old one.",
        "Random optimizers in RAM, on disk and on a fake device are saved while steps, moves and imports go on, and twins "
        "at once. The n-th call fails, or ends the process. Bytes mapped meanwhile are measured.",
        (
            cpp(CROSS, "AsyncSave.FilesAreThoseOfASynchronousSave:AsyncSaveOnAFakeDevice.FilesAreThoseOfTheHost",
                r"(?P<saves>\d+) saves beside steps \(.*: (?P<differ>\d+) files differ .*of (?P<bytes>\d+) bytes",
                "{saves} saves: {differ} files differ, of {bytes:,} bytes"),
            cpp(CROSS, "AsyncSave.CopiesStayWithinTheirLimit",
                r"(?P<saves>\d+) saves: above the bound (?P<above>\d+), most", "memory: {above} of {saves} above the bound"),
            cpp(CROSS, "AsyncSaveFailures.AnyFailedCallLeavesTheOldOrTheNew",
                r"(?P<points>\d+) points, .* lost (?P<lost>\d+), files neither old nor new (?P<wrong>\d+)",
                "{points} failed calls: {lost} failures lost, {wrong} files neither old nor new"),
            cpp(CROSS, "AsyncSaveFailures.KilledAnywhere", r"killed at (?P<killed>\d+) of .*neither (?P<wrong>\d+);",
                "{killed} kills: {wrong} files neither old nor new"),
        ),
    ),
)  # fmt: skip
