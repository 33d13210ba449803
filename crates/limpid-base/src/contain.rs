//! For third-party code that may panic on damaged input: turns its panic into an error.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// The result of `work`, or the message of its panic. After a panic, the values that `work` was changing must not be
/// used.
pub fn contain<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = WITHIN.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    WITHIN.set(before);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it gave no reason".into())
    })
}

/// Whether this thread is inside [`contain`], so that a panic becomes an error: a panic hook need not print it.
pub fn is_contained() -> bool {
    WITHIN.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_reason() {
        assert_eq!(contain(|| 3), Ok(3));
        let inner = contain(|| {
            assert!(is_contained());
            assert_eq!(contain(|| panic!("{} {}", "of", "two")), Err::<(), _>("of two".into()));
            assert!(is_contained());
            panic!("plain")
        });
        assert_eq!(inner, Err::<(), _>("plain".into()));
        assert!(!is_contained());
    }
}
