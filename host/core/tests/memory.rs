//! What a binding costs, counted at the allocator: field cases 33 and 34.
//!
//! Alone in its file, and one test, because the counter sees every thread.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

mod common;

use common::{Bench, bind};
use pointsman_core::{ChainBuilder, Incoming, Key, Keys, Limits, Shared, Target, splitmix64};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// DESIGN §12.
const AT_MOST: usize = 150;
const MILLION: usize = 1_000_000;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: the system's allocator does the work; the counter touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(block(layout.size()), Relaxed);
        // SAFETY: as our caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(block(layout.size()), Relaxed);
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

/// What glibc's malloc spends on it: a word more, in steps of 16 bytes, at least 32.
fn block(size: usize) -> usize {
    (size + 8).next_multiple_of(16).max(32)
}

fn limits(max: usize) -> Limits {
    Limits {
        max,
        ..Limits::default()
    }
}

fn turn(session: usize, messages: u32) -> Incoming {
    let mut chain = ChainBuilder::default();
    for message in 0..messages {
        let text = [session as u64, u64::from(message)].map(u64::to_le_bytes);
        chain.message(text.as_flattened(), 100 * (message + 1));
    }
    Incoming {
        session: Some(splitmix64(session as u64)),
        prompt_tokens: 100 * messages,
        shared: Shared::Chain(chain.build()),
        ..Incoming::default()
    }
}

fn run(bench: &Bench, sessions: std::ops::Range<usize>, messages: u32) {
    for session in sessions {
        let at = Target::try_from(session % 2).unwrap();
        bench
            .send(
                &turn(session, messages),
                bind(at, Keys::NONE.with(Key::Session)),
            )
            .finish();
    }
}

fn cost(max: usize, messages: u32) -> usize {
    let bench = Bench::limited(limits(max));
    let before = ALLOCATED.load(Relaxed);
    run(&bench, 0..max, messages);
    assert_eq!(bench.core.bindings().len(), max);
    let each = (ALLOCATED.load(Relaxed) - before) / max;
    println!("{max} bindings, {messages} messages remembered: {each} B each");
    each
}

#[test]
fn case_33_and_34_a_million_sessions_stay_under_the_bound_and_churn_adds_nothing() {
    assert!(cost(MILLION, 0) <= AT_MOST);
    assert!(cost(MILLION, 20) <= AT_MOST);
    // Just after the slab and the index have grown: the worst moment.
    assert!(cost(64 * 14_400, 20) <= AT_MOST);

    // 34: a burst of others, each seen once, in a full table
    let max = 10_000;
    let bench = Bench::limited(limits(max));
    run(&bench, 0..10 * max, 20);
    let full = ALLOCATED.load(Relaxed);
    run(&bench, 10 * max..50 * max, 20);
    assert_eq!(bench.core.bindings().len(), max);
    let grown = ALLOCATED.load(Relaxed).saturating_sub(full);
    assert!(
        grown <= full / 50,
        "{grown} B more than {full} B after a churn of 40 tables"
    );

    // and what grew is given back to new sessions after the old ones' time is over; only the list of
    // free places is new
    bench.clock.advance(Limits::default().ttl_ms);
    assert_eq!(bench.core.sweep(), max);
    run(&bench, 0..max, 20);
    let again = ALLOCATED.load(Relaxed).saturating_sub(full);
    assert!(
        again <= full / 20,
        "{again} B more than {full} B after all expired"
    );
}
