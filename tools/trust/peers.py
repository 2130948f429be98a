"""Bugs that other projects had, each with our check that fails if we have it.

Numbers name issues and pull requests: bnb = bitsandbytes, ao = torchao."""

from __future__ import annotations

from trust.checks import Bug, cpp, python

CROSS = "lowtide_cross_tests"
UNIT = "lowtide_tests"

BUGS = (
    Bug("bnb#121, #152, #227", "the unsigned dynamic map was built wrong: bad losses for seven months",
        cpp(UNIT, "DynamicMap.*:Dynamic8.*")),
    Bug("bnb#782, #1344; axolotl#864; xtuner#318", "resuming paged state ended the process, or left it unpaged",
        python("test_memory.py::test_files_go_from_any_tier_to_any", "test_memory.py::test_state_dict_goes_both_ways")),
    Bug("bnb#1633, #89", "illegal access, or lost 8-bit state, under FSDP",
        python("test_distributed_training.py::test_models_resume", "test_fsdp1.py::test_state_comes_back_bit_for_bit")),
    Bug("bnb#2080; ao#4912, #4913", "precision depended on how a model was wrapped or on the mesh",
        python("test_distributed_meshes.py::test_any_mesh_gives_the_same_bits")),
    Bug("bnb#1785; apex#1654", "more than 2³¹ elements: indices wrapped", cpp(CROSS, "LargeTensor.*")),
    Bug("bnb-windows#7; xtuner#247", "managed memory was prefetched where devices cannot",
        cpp("lowtide_cuda_host_tests", "CudaMemory.ManagedMemoryWithoutPrefetch")),
    Bug("bnb#1647; unsloth#1080", "a new option of groups broke resuming",
        python("test_state_dict.py::test_lr_tensors_and_foreign_keys_survive",
               "test_torch_state_dict.py::test_states_of_torch_can_be_loaded")),
    Bug("bnb PR#1898", "a null pointer was returned after a printed error, and used",
        cpp("lowtide_bnb_tests", "BnbRefusals.*:Bnb.FailuresAreSaidAndChangeNothing")),
    Bug("bnb", "paged buffers were never freed",
        python("test_promises.py::test_memory_comes_back", "test_memory.py::test_nothing_stays_on_disk")),
    Bug("bnb", "AdEMAMix's state was NaN after loading",
        python("test_foreign_bitsandbytes.py::test_ademamix_scales_as_cuda_places_them")),
    Bug("facebookresearch/bitsandbytes#26", "a step accessed memory beyond its tensor",
        cpp("lowtide_cuda_kernel_tests", "CudaSteps.GiveTheBitsOfTheCpu")),
    Bug("ao#1044, #1931; torchtune#1978; axolotl#2744", "tensor subclasses could not be loaded or saved under FSDP",
        python("test_state_dict.py::test_only_plain_tensors_and_no_two_share_memory",
               "test_distributed_checkpoints.py")),
    Bug("ao#959, #730; pytorch#139575", "schedulers refused the optimizer, made it slow, or lost a tensor lr",
        python("test_schedulers.py", "test_torch_semantics.py::test_tensor_lr")),
    Bug("ao", "sizes that are no multiple of a block silently got another precision",
        python("test_layouts.py::test_rows_are_blocks_of_their_own",
               "test_promises.py::test_bytes_per_parameter_are_as_documented")),
    Bug("DeepSpeed#2272", "state on NVMe learned 25 times less than in RAM, without an error",
        cpp(CROSS, "Tiers.DiskAndRamGiveTheSameBits")),
    Bug("DeepSpeed#1627, #2006; transformers#31800", "swap files of 0 bytes; two models in one path",
        cpp(UNIT, "DirectoryLock.*:*Everywhere.ShorterBehindOurBackIsAnError*")),
    Bug("DeepSpeed#4888", "a count of bytes of a transfer overflowed above 2 GiB", cpp(CROSS, "LargeTensor.*")),
    Bug("DeepSpeed#5087", "the names of swap files grew too long",
        cpp(UNIT, "ScratchFaults.WorksWithoutNamelessFilesAndWithoutDirectIo")),
    Bug("DeepSpeed#7549, #8075, #7727", "a race between saves, leaked descriptors, a wait that held the GIL",
        cpp(UNIT, "CheckpointTemporary.*:StateStore.AllMemoryAndDescriptorsComeBack")),
    Bug("unsloth-zoo#962; LichtFeld#2066", "coordinates without gradient drifted", cpp(CROSS, "Rest.*")),
    Bug("pytorch#164929, #140898, #192202",
        "a distributed checkpoint changed training, was empty, or dropped frozen parameters",
        python("test_distributed_checkpoints.py::test_asking_for_the_state_changes_nothing",
               "test_state_dict.py::test_distributed_checkpoints_neither_step_nor_lose_anything",
               "test_state_dict.py::test_steps_of_frozen_parameters_are_saved")),
    Bug("pytorch#189308", "metadata of checkpoints was unpickled",
        python("test_state_dict.py::test_only_plain_tensors_and_no_two_share_memory")),
    Bug("Lightning#688, #19970", "a killed process left half a checkpoint", cpp(CROSS, "Killed.*")),
)  # fmt: skip
