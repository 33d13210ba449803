//! How much memory a call takes: an allocator that counts what each thread holds, and the most it held, and how often
//! any thread asks. A program of tests makes it its global allocator. Mapped files and arenas are not counted: they are
//! the system's.
#![allow(dead_code)] // each test uses its own part

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what this thread holds, and the most it held.
pub struct Counting;
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}
fn counted(change: isize) {
    let _ = HELD.try_with(|h| h.set((h.get().0 + change, h.get().1.max(h.get().0 + change))));
}
// SAFETY: every call is passed on to the system's allocator unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted(layout.size() as isize);
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        counted(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// What `work` gives, and the most memory it held at once beyond what was held before.
pub fn most<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get().0;
    HELD.set((before, before));
    let done = work();
    (done, (HELD.get().1 - before) as usize)
}

/// Allocations that `work` makes, on whichever thread; those of other tests too, unless this process has no other.
pub fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    work();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}
