//! New checkpoints of a run.
