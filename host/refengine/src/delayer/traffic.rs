//! Random traffic, checked by counters of the test's own.

use super::tests::{Ranks, thresholds};
use super::*;
use Cause::{Align, Error, First, Interval, Wait};
use proptest::prelude::*;

fn outlook() -> impl Strategy<Value = Outlook> {
    let age = prop_oneof![4 => 0.0..40.0, 1 => 40.0..90.0];
    let parts = (any::<bool>(), 0..150u64, 0..3u64, 0.0..0.95f64, 0..8u8, age);
    parts.prop_map(
        |(prefillable, pending, running_decode, kv_usage, partial, oldest_age_ms)| Outlook {
            prefillable,
            pending_tokens: if prefillable { pending } else { 0 },
            running_decode,
            kv_usage,
            has_partial: prefillable && partial == 0,
            oldest_age_ms,
        },
    )
}

/// A tick of random traffic: each rank's outlook and whether a permitted prefill completes there,
/// and whether the collective fails.
type RandomTick = (Vec<(Outlook, bool)>, bool);

fn tick(ranks: usize) -> impl Strategy<Value = RandomTick> {
    let rank = (outlook(), prop::bool::weighted(0.7));
    (
        prop::collection::vec(rank, ranks),
        prop::bool::weighted(0.02),
    )
}

fn traffic() -> impl Strategy<Value = (Thresholds, Vec<RandomTick>)> {
    let set = (
        0..5u32,
        1..30u32,
        1..15u32,
        1..6u32,
        prop::option::of(30.0..60.0f64),
    );
    let set = set.prop_map(
        |(interval, ttft, partial, stall, max_queue_ms)| Thresholds {
            prefill_decode_interval: interval,
            ttft_max_ticks: ttft,
            partial_max_ticks: partial,
            stall_ticks: stall,
            max_queue_ms,
            token_usage_low_watermark: Some(0.02),
            ..thresholds()
        },
    );
    let ticks = (1..5usize).prop_flat_map(|ranks| prop::collection::vec(tick(ranks), 1..200));
    (set, ticks)
}

proptest! {
    /// The bounds, checked by counters of the test's own.
    #[test]
    fn under_random_traffic_ranks_agree_nobody_waits_beyond_the_bounds_and_decode_gets_its_interval(
        (set, ticks) in traffic()
    ) {
        let mut ranks = Ranks(vec![Delayer::new(set); ticks[0].0.len()]);
        let (mut begun, mut held) = (false, 0);
        // Ticks of the interval left, by what was executed; an execution nobody heard of yet.
        let (mut protected, mut executed) = (0, false);
        for (tick, failed) in ticks {
            let has: Vec<_> = tick.iter().map(|(has, _)| *has).collect();
            let cause = if failed { ranks.decide(Err(CollectiveError)) } else { ranks.tick(&has) };
            let ready = has.iter().filter(|h| h.prefillable).count();
            let decodes = has.iter().any(|h| h.running_decode > 0);
            if failed {
                prop_assert_eq!(cause, Error);
            } else {
                if std::mem::take(&mut executed) {
                    protected = set.prefill_decode_interval;
                }
                let first = !std::mem::replace(&mut begun, true);
                prop_assert_eq!(cause == First, first);
                if !first {
                    let both = ready > 0 && decodes;
                    prop_assert_eq!(cause == Interval, protected > 0 && both, "{:?}", cause);
                    protected = protected.saturating_sub(1);
                }
            }
            match cause {
                Interval => {}
                Wait | Align => {
                    held += 1;
                    prop_assert!(held <= set.ttft_max_ticks);
                    if has.iter().any(|h| h.has_partial) {
                        prop_assert!(held <= set.partial_max_ticks);
                    }
                    let hot = |h: &&Outlook| {
                        h.prefillable && set.max_queue_ms.is_some_and(|ms| h.oldest_age_ms >= ms)
                    };
                    prop_assert_eq!(has.iter().find(hot), None, "held beyond its age");
                    prop_assert!(decodes && ready > 0, "held for nobody");
                    prop_assert_eq!(cause == Align, ready < has.len());
                }
                _ => held = 0,
            }
            for (delayer, (has, completes)) in ranks.0.iter_mut().zip(&tick) {
                if cause.fires() && has.prefillable && *completes {
                    delayer.notify_prefill_executed();
                    executed = true;
                }
            }
        }
    }
}
