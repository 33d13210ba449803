//! Events of the engine to answers.
