use super::Cause::{
    Align, Error, Fill, First, Interval, Kv, NoDecode, Partial, QueueMs, Stall, Ttft, Vacuous, Wait,
};
use super::*;

/// Prefillable with 50 of 100 tokens pending, while 4 sequences decode.
const HALF: Outlook = Outlook {
    prefillable: true,
    pending_tokens: 50,
    running_decode: 4,
    kv_usage: 0.2,
    has_partial: false,
    oldest_age_ms: 0.0,
};
/// Decodes, and nothing else.
const NONE: Outlook = Outlook {
    prefillable: false,
    pending_tokens: 0,
    ..HALF
};

pub(super) fn thresholds() -> Thresholds {
    Thresholds {
        token_budget: 100,
        ..Thresholds::default()
    }
}

/// Ranks whose delayers decide together; that they agree is part of every test.
pub(super) struct Ranks(pub(super) Vec<Delayer>);

impl Ranks {
    /// Past the first tick.
    fn new(ranks: usize, thresholds: Thresholds) -> Self {
        let mut ranks = Self(vec![Delayer::new(thresholds); ranks]);
        let idle = vec![NONE; ranks.0.len()];
        assert_eq!(ranks.tick(&idle), First);
        ranks
    }

    pub(super) fn tick(&mut self, has: &[Outlook]) -> Cause {
        let vectors: Vec<_> = (self.0.iter().zip(has))
            .map(|(delayer, has)| delayer.contribution(has))
            .collect();
        self.decide(Ok(Reduced::of(&vectors)))
    }

    pub(super) fn decide(&mut self, reduced: Result<Reduced, CollectiveError>) -> Cause {
        let causes: Vec<_> = self.0.iter_mut().map(|d| d.decide(reduced)).collect();
        assert!(causes.windows(2).all(|w| w[0] == w[1]), "{causes:?}");
        causes[0]
    }

    fn ticks(&mut self, n: usize, has: &[Outlook]) -> Vec<Cause> {
        (0..n).map(|_| self.tick(has)).collect()
    }
}

#[test]
fn the_hand_checked_vector_of_the_reference() {
    let mut delayer = Delayer::new(Thresholds {
        prefill_decode_interval: 2,
        ..thresholds()
    });
    assert_eq!(delayer.decide_alone(&HALF), First);
    delayer.notify_prefill_executed();
    let then: Vec<_> = (1..=13).map(|_| delayer.decide_alone(&HALF)).collect();
    assert_eq!(then[..2], [Interval; 2], "t1, t2");
    assert_eq!(then[2..12], [Wait; 10], "t3 to t12");
    assert_eq!(then[12], Stall, "t13");
}

#[test]
fn the_defaults_are_the_documented_ones() {
    let set = *Delayer::new(Thresholds::default()).thresholds();
    assert_eq!(
        (
            set.target_fill,
            set.kv_high_watermark,
            set.token_usage_low_watermark,
            set.max_queue_ms
        ),
        (0.9, 0.9, None, None)
    );
    assert_eq!(
        (
            set.prefill_decode_interval,
            set.ttft_max_ticks,
            set.partial_max_ticks,
            set.stall_ticks
        ),
        (0, 200, 100, 10)
    );
}

#[test]
fn thresholds_out_of_range_count_as_the_nearest_in_range() {
    let with = |target_fill, ticks| {
        let delayer = Delayer::new(Thresholds {
            target_fill,
            ttft_max_ticks: ticks,
            partial_max_ticks: ticks,
            stall_ticks: ticks,
            ..thresholds()
        });
        *delayer.thresholds()
    };
    let (low, high) = (with(-1.0, 0), with(7.0, 3));
    assert_eq!((low.target_fill, high.target_fill), (0.05, 1.0));
    let ticks = |t: Thresholds| (t.ttft_max_ticks, t.partial_max_ticks, t.stall_ticks);
    assert_eq!((ticks(low), ticks(high)), ((1, 1, 1), (3, 3, 3)));
}

#[test]
fn each_cause_at_its_bound_and_not_below_it() {
    let cases: &[(&str, Thresholds, Outlook, Cause)] = &[
        ("nothing to prefill", thresholds(), NONE, Vacuous),
        (
            "nobody decodes",
            thresholds(),
            Outlook {
                running_decode: 0,
                ..HALF
            },
            NoDecode,
        ),
        (
            "cache full",
            thresholds(),
            Outlook {
                kv_usage: 0.9,
                ..HALF
            },
            Kv,
        ),
        (
            "cache nearly full",
            thresholds(),
            Outlook {
                kv_usage: 0.899,
                ..HALF
            },
            Wait,
        ),
        (
            "cache full, nothing to prefill",
            thresholds(),
            Outlook {
                kv_usage: 1.0,
                ..NONE
            },
            Vacuous,
        ),
        (
            "cache starving",
            Thresholds {
                token_usage_low_watermark: Some(0.21),
                ..thresholds()
            },
            HALF,
            Kv,
        ),
        (
            "cache not starving",
            Thresholds {
                token_usage_low_watermark: Some(0.2),
                ..thresholds()
            },
            HALF,
            Wait,
        ),
        (
            "waited as long as may be",
            Thresholds {
                max_queue_ms: Some(5000.0),
                ..thresholds()
            },
            Outlook {
                oldest_age_ms: 5000.0,
                ..HALF
            },
            QueueMs,
        ),
        (
            "waited less",
            Thresholds {
                max_queue_ms: Some(5000.0),
                ..thresholds()
            },
            Outlook {
                oldest_age_ms: 4999.0,
                ..HALF
            },
            Wait,
        ),
        (
            "no limit of age",
            thresholds(),
            Outlook {
                oldest_age_ms: 1e12,
                ..HALF
            },
            Wait,
        ),
        (
            "filled",
            thresholds(),
            Outlook {
                pending_tokens: 90,
                ..HALF
            },
            Fill,
        ),
        (
            "not filled",
            thresholds(),
            Outlook {
                pending_tokens: 89,
                ..HALF
            },
            Wait,
        ),
        (
            "overfilled",
            thresholds(),
            Outlook {
                pending_tokens: u64::MAX,
                ..HALF
            },
            Fill,
        ),
        (
            "no budget at all",
            Thresholds {
                token_budget: 0,
                ..thresholds()
            },
            HALF,
            Fill,
        ),
    ];
    for (what, thresholds, has, cause) in cases {
        assert_eq!(Ranks::new(1, *thresholds).tick(&[*has]), *cause, "{what}");
    }
}

#[test]
fn a_rank_without_prompts_holds_the_others_up_until_the_ttft_bound() {
    let full = Outlook {
        pending_tokens: 100,
        ..HALF
    };
    let mut ranks = Ranks::new(2, thresholds());
    assert_eq!(ranks.ticks(200, &[full, NONE]), [Align; 200]);
    assert_eq!(ranks.tick(&[full, NONE]), Ttft);
    assert_eq!(ranks.tick(&[full, NONE]), Align, "a fire begins anew");
    assert_eq!(ranks.tick(&[full, full]), Fill);
}

#[test]
fn a_partly_computed_prompt_is_held_half_as_long() {
    let partial = Outlook {
        has_partial: true,
        ..HALF
    };
    let mut ranks = Ranks::new(2, thresholds());
    assert_eq!(ranks.ticks(100, &[partial, NONE]), [Align; 100]);
    assert_eq!(ranks.tick(&[partial, NONE]), Partial);
}

#[test]
fn one_rank_that_must_fire_makes_all_fire() {
    let set = Thresholds {
        max_queue_ms: Some(10.0),
        ..thresholds()
    };
    let old = Outlook {
        oldest_age_ms: 10.0,
        ..HALF
    };
    let full = Outlook {
        kv_usage: 1.0,
        ..HALF
    };
    assert_eq!(Ranks::new(3, set).tick(&[HALF, NONE, old]), QueueMs);
    assert_eq!(Ranks::new(3, set).tick(&[HALF, full, NONE]), Kv);
    let idle = Outlook {
        running_decode: 0,
        ..HALF
    };
    assert_eq!(Ranks::new(2, set).tick(&[idle, idle]), NoDecode);
    assert_eq!(Ranks::new(2, set).tick(&[idle, HALF]), Wait, "one decodes");
}

#[test]
fn the_fill_is_that_of_all_ranks_together() {
    let with = |pending_tokens| Outlook {
        pending_tokens,
        ..HALF
    };
    assert_eq!(
        Ranks::new(2, thresholds()).tick(&[with(100), with(80)]),
        Fill
    );
    assert_eq!(
        Ranks::new(2, thresholds()).tick(&[with(100), with(79)]),
        Wait
    );
    // A rank fills its own budget at most.
    assert_eq!(
        Ranks::new(2, thresholds()).tick(&[with(9999), with(1)]),
        Wait
    );
}

#[test]
fn what_still_grows_is_waited_for() {
    let set = Thresholds {
        stall_ticks: 2,
        ..thresholds()
    };
    let with = |pending_tokens| {
        [Outlook {
            pending_tokens,
            ..HALF
        }]
    };
    let mut ranks = Ranks::new(1, set);
    let pending = [10, 10, 11, 11, 11];
    let causes: Vec<_> = pending.iter().map(|n| ranks.tick(&with(*n))).collect();
    assert_eq!(causes, [Wait, Wait, Wait, Wait, Stall]);
}

#[test]
fn the_interval_is_decodes_own_whatever_gathers_and_only_where_both_want_the_tick() {
    let set = Thresholds {
        prefill_decode_interval: 4,
        max_queue_ms: Some(1.0),
        ..thresholds()
    };
    let urgent = Outlook {
        oldest_age_ms: 1e9,
        kv_usage: 1.0,
        pending_tokens: 100,
        ..HALF
    };
    let mut ranks = Ranks::new(2, set);
    ranks.0[1].notify_prefill_executed();
    assert_eq!(ranks.tick(&[urgent, NONE]), Interval);
    assert_eq!(ranks.tick(&[NONE, NONE]), Vacuous, "nobody is held back");
    let idle = Outlook {
        running_decode: 0,
        ..urgent
    };
    assert_eq!(ranks.tick(&[idle, idle]), NoDecode, "nobody to protect");
    assert_eq!(
        ranks.tick(&[urgent, NONE]),
        Interval,
        "the fourth tick since"
    );
    assert_eq!(ranks.tick(&[urgent, NONE]), Kv);
}

#[test]
fn permission_without_execution_arms_nothing() {
    let set = Thresholds {
        prefill_decode_interval: 5,
        ..thresholds()
    };
    let full = [Outlook {
        pending_tokens: 100,
        ..HALF
    }];
    let mut ranks = Ranks::new(1, set);
    assert_eq!(ranks.ticks(3, &full), [Fill; 3]);
    ranks.0[0].notify_prefill_executed();
    assert_eq!(
        ranks.ticks(6, &full),
        [Interval, Interval, Interval, Interval, Interval, Fill]
    );
}

#[test]
fn an_error_of_the_collective_fires_begins_anew_and_keeps_what_nobody_heard() {
    let set = Thresholds {
        prefill_decode_interval: 1,
        stall_ticks: 2,
        ..thresholds()
    };
    let mut ranks = Ranks::new(2, set);
    assert_eq!(ranks.ticks(2, &[HALF; 2]), [Wait; 2]);
    ranks.0[0].notify_prefill_executed();
    assert_eq!(ranks.decide(Err(CollectiveError)), Error);
    assert_eq!(
        ranks.tick(&[HALF; 2]),
        Interval,
        "the executed prefill is still told"
    );
    assert_eq!(
        ranks.ticks(3, &[HALF; 2]),
        [Wait, Wait, Stall],
        "counted anew"
    );
    let mut early = Delayer::new(set);
    assert_eq!(early.decide(Err(CollectiveError)), Error);
    assert_eq!(
        early.decide_alone(&HALF),
        First,
        "an error is no first tick"
    );
}
