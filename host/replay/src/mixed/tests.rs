use super::*;

/// Rank by rank, in turn.
struct Turn(usize);

impl Conductor for Turn {
    fn route(&mut self, _: Duration, arrival: &Arrival) -> Result<usize, String> {
        Ok(arrival.id as usize % self.0)
    }

    fn output(&mut self, _: Duration, _: u64, _: usize, _: bool) {}

    fn between(&mut self, _: Duration, _: &mut Lockstep) -> Result<(), String> {
        Ok(())
    }
}

fn interval(prefill_decode_interval: u32) -> Option<Thresholds> {
    Some(Thresholds {
        prefill_decode_interval,
        ..Thresholds::default()
    })
}

fn mix() -> Mix {
    Mix {
        duration: Duration::from_secs(60),
        ..Mix::default()
    }
}

fn run(mix: &Mix, thresholds: Option<Thresholds>) -> Mixed {
    play(mix, thresholds, &mut Turn(mix.ranks)).unwrap()
}

#[test]
fn every_token_is_counted_once_and_the_same_load_gives_the_same_figures() {
    let mix = mix();
    let arrivals = mix.arrivals();
    let output: usize = arrivals.iter().map(|a| a.output_tokens).sum();
    let found = run(&mix, interval(4));
    assert_eq!(found.requests, arrivals.len());
    let counted = found.output_tokens_per_s * found.seconds;
    assert!(
        (counted - output as f64).abs() < 0.5,
        "{counted} of {output}"
    );
    let decided: u64 = found.decisions.iter().map(|(_, n)| n).sum();
    assert_eq!(decided, found.ticks);
    assert_eq!(found, run(&mix, interval(4)));
    let other = Mix { seed: 2, ..mix };
    assert_ne!(found, run(&other, interval(4)));
}

#[test]
fn an_interval_makes_fewer_ticks_stop_the_streams() {
    let mix = mix();
    let (off, ten) = (run(&mix, None), run(&mix, interval(10)));
    assert_eq!(off.requests, ten.requests);
    assert!(ten.itl_ms.p90 < off.itl_ms.p90, "{ten:?} {off:?}");
    let share = |run: &Mixed| run.prefill_ticks as f64 / run.ticks as f64;
    assert!(share(&ten) <= 1.0 / 11.0 + 0.01, "{}", share(&ten));
    assert!(share(&off) > share(&ten));
}

#[test]
fn arrivals_keep_to_what_was_asked_for() {
    let mix = Mix {
        duration: Duration::from_secs(2000),
        ..mix()
    };
    let all = mix.arrivals();
    let (wanted, found) = (24_000.0, all.len() as f64);
    assert!((found - wanted).abs() < 5.0 * f64::sqrt(wanted), "{found}");
    let long = all.iter().filter(|a| a.prompt_tokens > 8000).count() as f64;
    assert!((long / found - 0.1).abs() < 0.01, "{long}");
    assert!(all.iter().all(|a| (128..=384).contains(&a.output_tokens)));
    assert!(all.is_sorted_by_key(|a| a.at));
}

#[test]
fn a_load_that_cannot_be_is_named() {
    for (bad, wanted) in [
        (
            Mix { ranks: 0, ..mix() },
            "ranks: wanted 1 to 1024, found 0",
        ),
        (
            Mix {
                requests_per_s: f64::NAN,
                ..mix()
            },
            "requests per second: wanted more than 0",
        ),
        (
            Mix {
                requests_per_s: 1e9,
                ..mix()
            },
            "wanted at most 200000",
        ),
        (
            Mix {
                long_share: 1.5,
                ..mix()
            },
            "long share: wanted 0 to 1, found 1.5",
        ),
        (
            Mix {
                long_prompt: 1 << 40,
                ..mix()
            },
            "the cache of a rank",
        ),
    ] {
        let why = bad.validate().unwrap_err().to_string();
        assert!(why.contains(wanted), "{why}");
    }
    assert_eq!(mix().validate(), Ok(()));
}

#[test]
fn a_conductor_that_fails_ends_the_run() {
    struct Nowhere;
    impl Conductor for Nowhere {
        fn route(&mut self, _: Duration, _: &Arrival) -> Result<usize, String> {
            Ok(99)
        }
        fn output(&mut self, _: Duration, _: u64, _: usize, _: bool) {}
        fn between(&mut self, _: Duration, _: &mut Lockstep) -> Result<(), String> {
            Ok(())
        }
    }
    let error = play(&mix(), None, &mut Nowhere).unwrap_err().to_string();
    assert_eq!(error, "wanted one of 8 ranks, found rank 99");
}
