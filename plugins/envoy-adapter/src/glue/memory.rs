//! The adapter's allocator: a request makes some hundred small things that live for microseconds, and
//! the standard one of this target (dlmalloc) spends more on each than is done with it.
//!
//! Small blocks come from lists of free ones, one list a size, refilled from the standard allocator a
//! page at a time and never given back to it: what a VM needs at its busiest is kept, which what is in
//! flight bounds. Large ones are the standard allocator's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// Sizes are multiples of this, and so is where a block begins.
const GRAIN: usize = 16;
/// The largest small block, in bytes.
const LARGEST: usize = 1024;
/// What is asked of the standard allocator at once, in bytes.
const PAGE: usize = 16 * 1024;

/// See the module.
pub(super) struct Lists([Cell<*mut Free>; LARGEST / GRAIN]);

/// A free block: where the next one is.
struct Free(*mut Free);

#[allow(unsafe_code, reason = "an allocator")]
// SAFETY: this target has no threads.
unsafe impl Sync for Lists {}

impl Lists {
    pub(super) const fn new() -> Lists {
        Lists([const { Cell::new(null_mut()) }; LARGEST / GRAIN])
    }

    /// The list of a layout; none: it is not small.
    fn of(&self, layout: Layout) -> Option<&Cell<*mut Free>> {
        if layout.align() > GRAIN {
            return None;
        }
        self.0.get(layout.size().wrapping_sub(1) / GRAIN)
    }
}

#[allow(unsafe_code, reason = "an allocator")]
// SAFETY: a block is in at most one list, and in none while it is handed out; all blocks of a list have
// its size, and begin at a multiple of GRAIN.
unsafe impl GlobalAlloc for Lists {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(list) = self.of(layout) else {
            // SAFETY: the caller's.
            return unsafe { System.alloc(layout) };
        };
        if list.get().is_null() {
            refill(list, layout.size().next_multiple_of(GRAIN));
        }
        let block = list.get();
        if !block.is_null() {
            // SAFETY: a free block holds a `Free`.
            list.set(unsafe { (*block).0 });
        }
        block.cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.of(layout) {
            // SAFETY: the block is free from now on, large enough and aligned for a `Free`.
            Some(list) => unsafe {
                let block: *mut Free = block.cast();
                block.write(Free(list.get()));
                list.set(block);
            },
            // SAFETY: the caller's.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (self.of(layout), self.of(new)) {
            // SAFETY: the caller's.
            (None, None) => unsafe { System.realloc(block, layout, size) },
            (Some(had), Some(has)) if std::ptr::eq(had, has) => block,
            // SAFETY: the caller's; both blocks are at least as long as what is copied.
            _ => unsafe {
                let to = self.alloc(new);
                if !to.is_null() {
                    to.copy_from_nonoverlapping(block, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                to
            },
        }
    }
}

/// Cuts a page into blocks; without memory the list stays empty.
#[cold]
#[inline(never)]
#[allow(unsafe_code, reason = "an allocator")]
fn refill(list: &Cell<*mut Free>, size: usize) {
    let Ok(layout) = Layout::from_size_align(PAGE, GRAIN) else {
        return;
    };
    // SAFETY: the layout has a size.
    let page = unsafe { System.alloc(layout) };
    if page.is_null() {
        return;
    }
    for n in 0..PAGE / size {
        // SAFETY: within the page, and aligned as it and `size` are.
        unsafe {
            let block: *mut Free = page.add(n * size).cast();
            block.write(Free(list.get()));
            list.set(block);
        }
    }
}
