"""Faults of the store: each breaks a rule that keeps an incomplete or damaged checkpoint from being
loaded."""

from tests.mutants.mutant import Change, Mutant, mutant

_DAMAGE = "tests/store/test_damage.py"
_CHECKPOINTS = "tests/store/test_checkpoints.py"
_FLIPPED = f"{_DAMAGE}::test_no_flipped_byte_goes_unnoticed"

STORE: tuple[Mutant, ...] = (
    Mutant(
        "manifest-first",
        "A writer that is killed leaves a checkpoint that seems to exist and has no record.",
        (
            Change("store:write_manifest", "store.put(path_of(number, name), data)", "None"),
            Change(
                "store:write_manifest",
                "return checkpoint",
                "store.put(path_of(number, name), data)\nreturn checkpoint",
            ),
        ),
        (f"{_DAMAGE}::test_a_checkpoint_exists_from_its_last_write_on",),
        slow=True,
    ),
    mutant(
        "manifest-overwrites",
        "Two jobs in one store replace each other's checkpoints.",
        "store:_created",
        "store.create(path, manifest)",
        "store.put(path, manifest) is None",
        f"{_CHECKPOINTS}::test_two_jobs_in_one_store_collide_and_the_first_checkpoint_stays[memory]",
    ),
    mutant(
        "digest-of-tensors-not-checked",
        "Parameters with a flipped bit are loaded.",
        "store:read_bytes",
        "digest_of(part) != index.digests[name]",
        "False",
        f"{_FLIPPED}[first slices]",
    ),
    mutant(
        "digest-of-index-not-checked",
        "A file whose index was changed is loaded.",
        "store:read_index",
        "digest_of(head) != entry.digest",
        "False",
        f"{_DAMAGE}::test_an_index_that_names_another_dtype_is_found",
    ),
    mutant(
        "digest-of-record-not-checked",
        "A damaged record is loaded.",
        "store:read_record",
        "data.nbytes != entry.nbytes or digest_of(data) != entry.digest",
        "False",
        f"{_FLIPPED}[record]",
    ),
    mutant(
        "digest-of-manifest-not-checked",
        "A damaged manifest is loaded.",
        "store:decode_manifest",
        "_digest(envelope.format, raw) != envelope.digest",
        "False",
        f"{_FLIPPED}[manifest]",
    ),
    mutant(
        "checkpoint-without-a-slice",
        "A checkpoint that lacks the slices of one server gets a manifest.",
        "store:_missing_slices",
        "slice_.id not in written",
        "False",
        f"{_CHECKPOINTS}::test_a_manifest_needs_every_slice[memory]",
    ),
    mutant(
        "prune-counts-damaged-checkpoints",
        "Only damaged checkpoints may be left.",
        "store:prune",
        "each.fault is None",
        "True",
        f"{_CHECKPOINTS}::test_prune_does_not_count_damaged_checkpoints_as_kept[memory]",
    ),
    mutant(
        "another-version-is-skipped",
        "A job continues from an old checkpoint and discards the progress of a newer one.",
        "store:newest",
        "(DamagedCheckpoint, ObjectMissing)",
        "StoreError",
        f"{_DAMAGE}::test_a_checkpoint_of_another_version_is_not_skipped[memory]",
    ),
    mutant(
        "next-checkpoint-is-not-later",
        "A job that is one checkpoint behind another job goes on.",
        "store:_is_latest",
        "later > number",
        "later > number + 1",
        "tests/store/test_checkpoints.py::test_a_job_that_fell_behind_another_in_one_store_is_told",
    ),
    mutant(
        "torn-object-stays",
        "An object for which there is no room stays in the store, and takes the last room.",
        "store:Store.put",
        "self.delete([name])",
        "None",
        "tests/store/test_objects.py::test_an_object_for_which_there_is_no_room_leaves_nothing_behind",
    ),
    mutant(
        "a-long-index-is-read-in-part",
        "A checkpoint of a model with very many tensors cannot be read.",
        "store:read_index",
        "nbytes > end",
        "False",
        "tests/store/test_tensor_file.py"
        "::test_an_index_longer_than_the_first_read_is_read_as_a_whole",
    ),
    mutant(
        "the-smallest-count-of-steps",
        "A slice that is put together from several has the smallest of their counts of steps.",
        "store:_joined",
        "torch.stack([tensor for _, tensor in known]).amax(0)",
        "torch.stack([tensor for _, tensor in known]).amin(0)",
        "tests/store/test_recut.py::test_a_count_of_steps_is_the_largest_one_of_the_sources",
    ),
)
