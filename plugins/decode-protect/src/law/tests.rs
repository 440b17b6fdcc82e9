use super::*;
use proptest::prelude::*;

fn config() -> Config {
    Config {
        itl_limit_ms: Some(50.0),
        ttft_limit_ms: Some(1000.0),
        settle_ms: 100,
        ..Config::default()
    }
}

fn at(interval: u32) -> Setting {
    Setting {
        interval,
        ..Setting::first(&config(), 0)
    }
}

fn seen(ttft_ms: f64, itl_ms: f64) -> Seen {
    Seen {
        ttft_ms: Some(ttft_ms),
        itl_ms: Some(itl_ms),
        waiting: None,
    }
}

/// Delayer and interval after a look, long after the last change.
fn after(config: &Config, now: Setting, seen: Seen) -> (bool, u32) {
    let next = next(config, now, &seen, 1_000_000);
    (next.delayer, next.interval)
}

#[test]
fn each_row_of_the_table() {
    let config = config();
    let off = Setting {
        delayer: false,
        ..at(0)
    };
    for (what, now, seen, wanted) in [
        ("TTFT over", at(10), seen(1001.0, 10.0), (true, 5)),
        (
            "both over: TTFT first",
            at(10),
            seen(1001.0, 90.0),
            (true, 5),
        ),
        (
            "TTFT over at the shortest",
            at(0),
            seen(1001.0, 90.0),
            (false, 0),
        ),
        ("off and still over", off, seen(1001.0, 90.0), (false, 0)),
        ("ITL over", at(10), seen(799.0, 51.0), (true, 15)),
        (
            "ITL over, the delayer off",
            off,
            seen(799.0, 51.0),
            (true, 1),
        ),
        (
            "ITL over, TTFT near its limit",
            at(10),
            seen(801.0, 51.0),
            (true, 10),
        ),
        ("ITL near its limit", at(10), seen(10.0, 41.0), (true, 10)),
        ("at both limits", at(10), seen(1000.0, 50.0), (true, 10)),
        ("ITL well below", at(10), seen(10.0, 39.0), (true, 9)),
        (
            "ITL well below at the shortest",
            at(0),
            seen(10.0, 39.0),
            (true, 0),
        ),
        (
            "ITL over at the longest",
            at(40),
            seen(10.0, 51.0),
            (true, 40),
        ),
        ("nothing known", at(10), Seen::default(), (true, 10)),
    ] {
        assert_eq!(after(&config, now, seen), wanted, "{what}");
    }
}

#[test]
fn with_a_limit_on_ttft_alone_the_interval_comes_back_to_the_configured_one() {
    let config = Config {
        itl_limit_ms: None,
        ..config()
    };
    let mut now = at(10);
    let mut moves = |ttft| {
        now = next(&config, now, &seen(ttft, 900.0), now.since_ms + 100);
        (now.delayer, now.interval)
    };
    let over = [
        (true, 5),
        (true, 2),
        (true, 1),
        (true, 0),
        (false, 0),
        (false, 0),
    ];
    assert_eq!([(); 6].map(|()| moves(2000.0)), over);
    let back = [
        (true, 1),
        (true, 2),
        (true, 3),
        (true, 4),
        (true, 6),
        (true, 9),
        (true, 10),
        (true, 10),
    ];
    assert_eq!([(); 8].map(|()| moves(100.0)), back);
}

#[test]
fn a_change_shows_before_the_next_one() {
    let over = seen(10.0, 90.0);
    let first = next(&config(), at(10), &over, 100);
    assert_eq!((first.interval, first.since_ms), (15, 100));
    assert_eq!(next(&config(), first, &over, 199), first);
    assert_eq!(next(&config(), first, &over, 200).interval, 22);
    // A host that was started anew: its clock is behind.
    assert_eq!(next(&config(), first, &over, 5).interval, 22);
}

#[test]
fn without_limits_the_interval_is_the_configured_one_whatever_is_measured() {
    let config = Config::default();
    for interval in [0, 3, 10, 99] {
        assert_eq!(after(&config, at(interval), seen(1e9, 1e9)), (true, 10));
    }
}

#[test]
fn piled_up_prompts_relax_at_once_and_half_as_many_end_it() {
    let waiting = |waiting, relaxed, config: &Config| {
        let now = Setting { relaxed, ..at(20) };
        let seen = Seen {
            waiting: Some(waiting),
            ..seen(10.0, 90.0)
        };
        let next = next(config, now, &seen, 1);
        (next.interval, next.relaxed)
    };
    let limits = Config {
        relax_waiting: Some(8),
        min_interval: 2,
        ..config()
    };
    assert_eq!(waiting(8.0, false, &limits), (20, false));
    assert_eq!(waiting(9.0, false, &limits), (2, true));
    assert_eq!(waiting(5.0, true, &limits), (2, true));
    assert_eq!(waiting(4.0, true, &limits), (10, false));
    let none = Config {
        relax_waiting: Some(8),
        ..Config::default()
    };
    assert_eq!(waiting(9.0, false, &none), (0, true));
    assert_eq!(waiting(4.0, true, &none), (10, false));
}

#[test]
fn a_delayer_that_may_not_be_switched_stays_on() {
    let config = Config {
        switch_delayer: false,
        ..config()
    };
    assert_eq!(after(&config, at(0), seen(2000.0, 90.0)), (true, 0));
    let off = Setting {
        delayer: false,
        ..at(0)
    };
    assert!(after(&config, off, seen(2000.0, 90.0)).0);
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    for (bad, wanted) in [
        (
            Config {
                tick_ms: 9,
                ..config()
            },
            "tick_ms: wanted at least 10, found 9",
        ),
        (
            Config {
                min_interval: 11,
                max_interval: 10,
                ..config()
            },
            "min_interval = 11, max_interval = 10",
        ),
        (
            Config {
                max_interval: 1 << 20,
                ..config()
            },
            "at most 65536",
        ),
        (
            Config {
                prefill_decode_interval: 41,
                ..config()
            },
            "prefill_decode_interval: wanted 0 to 40, found 41",
        ),
        (
            Config {
                prefill_decode_interval: 70_000,
                ..Config::default()
            },
            "wanted 0 to 65536, found 70000",
        ),
        (
            Config {
                itl_limit_ms: Some(0.0),
                ..config()
            },
            "itl_limit_ms: wanted more than 0 ms, found 0",
        ),
        (
            Config {
                ttft_limit_ms: Some(f64::NAN),
                ..config()
            },
            "ttft_limit_ms: wanted more than 0 ms",
        ),
        (
            Config {
                max_queue_ms: Some(0),
                ..config()
            },
            "max_queue_ms: wanted at least 1, found 0",
        ),
        (
            Config {
                hysteresis: 1.0,
                ..config()
            },
            "hysteresis: wanted 0 to 0.9, found 1",
        ),
    ] {
        let why = bad.check().unwrap_err();
        assert!(why.contains(wanted), "{why}");
    }
    assert_eq!(Config::default().check(), Ok(()));
    let odd = Config {
        prefill_decode_interval: 99,
        ..Config::default()
    };
    assert_eq!(odd.check(), Ok(()), "bounds are for those who have limits");
}

fn setting() -> impl Strategy<Value = Setting> {
    let parts = (
        any::<bool>(),
        0..=MOST_TICKS,
        any::<bool>(),
        any::<u8>(),
        0..1u64 << 36,
    );
    parts.prop_map(|(delayer, interval, relaxed, begun, since_ms)| Setting {
        delayer,
        interval,
        relaxed,
        begun,
        since_ms,
    })
}

fn number() -> impl Strategy<Value = Option<f64>> {
    prop::option::of(prop_oneof![0.0..2000.0f64, Just(f64::INFINITY)])
}

proptest! {
    #[test]
    fn what_is_kept_comes_back(setting in setting()) {
        prop_assert_ne!(setting.packed(), 0);
        prop_assert_eq!(Setting::unpacked(setting.packed()), Some(setting));
    }

    #[test]
    fn whatever_is_kept_and_measured_the_interval_stays_within_its_bounds(
        kept in any::<u64>(), ttft_ms in number(), itl_ms in number(), waiting in number(), now_ms in 0..1u64 << 44,
    ) {
        let config = Config { min_interval: 3, relax_waiting: Some(8), ..config() };
        let now = Setting::unpacked(kept).unwrap_or(Setting::first(&config, 0));
        let seen = Seen { ttft_ms, itl_ms, waiting };
        let next = next(&config, now, &seen, now_ms);
        prop_assert!((3..=40).contains(&next.interval), "{:?}", next);
    }

    /// An engine whose ITL falls and TTFT rises with the interval: where both limits can be held, the
    /// law comes to rest within them.
    #[test]
    fn where_both_limits_can_be_held_it_comes_to_rest_there(start in 0..=40u32, base in 55.0..300.0f64) {
        let config = config();
        let (mut now, mut moved) = (at(start), 0);
        let engine = |interval: u32| seen(20.0 * f64::from(interval), 30.0 + base / f64::from(interval + 1));
        for look in 1..200 {
            let next = next(&config, now, &engine(now.interval), look * 100);
            if look > 100 {
                moved += u32::from(next != now);
            }
            now = next;
        }
        let rest = engine(now.interval);
        prop_assert!(rest.itl_ms.is_some_and(|ms| ms <= 50.0) && rest.ttft_ms.is_some_and(|ms| ms <= 1000.0));
        prop_assert_eq!(moved, 0);
    }
}
