//! The thread of the engine.
