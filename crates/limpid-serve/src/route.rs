//! Which request is whose.
