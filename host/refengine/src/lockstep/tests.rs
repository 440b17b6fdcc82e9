use super::*;
use crate::cost::CostModel;
use crate::preset::Preset;
use crate::scheduler::Request;
use proptest::prelude::*;

fn preset() -> Preset {
    Preset {
        name: "test".into(),
        cost: CostModel {
            step_base_us: 1000.0,
            prefill_token_us: 100.0,
            prefill_attention_us: 0.0,
            decode_sequence_us: 10.0,
            decode_context_us: 0.0,
        },
        max_num_batched_tokens: 20,
        max_num_seqs: 6,
        block_tokens: 4,
        cache_blocks: 60,
    }
}

fn request(id: u64, prompt_tokens: usize, output_tokens: usize, arrived: Duration) -> Request {
    let first = id % 5 * 1000;
    Request {
        id,
        prompt_tokens,
        output_tokens,
        keys: (first..first + prompt_tokens as u64 / 4).collect(),
        arrived,
    }
}

/// For each tick the requests that come before it: rank, prompt, output.
type Arrivals = Vec<Vec<(usize, usize, usize)>>;

const RANKS: usize = 3;

fn arrivals() -> impl Strategy<Value = Arrivals> {
    let request = (0..RANKS, 1..60usize, 1..25usize);
    prop::collection::vec(prop::collection::vec(request, 0..3), 1..80)
}

fn schedulers() -> Vec<Scheduler> {
    (0..RANKS).map(|_| Scheduler::new(preset())).collect()
}

/// All ticks until nothing is left to do, and when each began.
fn run(lockstep: &mut Lockstep, arrivals: &Arrivals) -> Vec<(Duration, Tick)> {
    let (mut ticks, mut id) = (Vec::new(), 0);
    let (mut now, mut arrivals) = (Duration::ZERO, arrivals.iter());
    loop {
        let arriving = arrivals.next();
        for (rank, prompt, output) in arriving.into_iter().flatten() {
            let request = request(id, *prompt, *output, now);
            lockstep.rank(*rank).unwrap().push(request).unwrap();
            id += 1;
        }
        match lockstep.tick(now) {
            Some(tick) => {
                lockstep.complete(&tick);
                let begun = now;
                now += tick.duration();
                ticks.push((begun, tick));
            }
            None if arriving.is_none() => return ticks,
            None => now += Duration::from_millis(1),
        }
        assert!(ticks.len() < 100_000, "it never ends");
    }
}

fn outputs(ticks: &[(Duration, Tick)]) -> usize {
    let steps = ticks
        .iter()
        .flat_map(|(_, tick)| tick.steps.iter().flatten());
    steps
        .flat_map(|step| &step.tokens)
        .filter(|token| token.last)
        .count()
}

proptest! {
    #[test]
    fn with_the_delayer_off_the_schedule_is_that_of_schedulers_without_one(arrivals in arrivals()) {
        let mut lockstep = Lockstep::new(schedulers(), None);
        let ticks = run(&mut lockstep, &arrivals);

        let (mut plain, mut id) = (schedulers(), 0);
        let mut at = ticks.iter();
        let mut requests = arrivals.iter();
        loop {
            let arriving = requests.next();
            for (rank, prompt, output) in arriving.into_iter().flatten() {
                let request = request(id, *prompt, *output, Duration::ZERO);
                plain[*rank].push(request).unwrap();
                id += 1;
            }
            let steps: Vec<_> = plain.iter_mut().map(|s| s.step(Admission::Fire)).collect();
            if steps.iter().all(Option::is_none) {
                if arriving.is_none() {
                    break;
                }
                continue;
            }
            let (_, tick) = at.next().unwrap();
            prop_assert_eq!(&tick.steps, &steps);
            prop_assert_eq!(tick.cause, None);
        }
        prop_assert!(at.next().is_none());
        for (rank, plain) in plain.iter().enumerate() {
            prop_assert_eq!(lockstep.rank(rank).unwrap().stats(), plain.stats());
        }
    }

    #[test]
    fn everybody_is_served_within_the_bounds_and_decode_gets_its_interval_after_every_prefill(
        (arrivals, interval, ttft_max_ticks) in (arrivals(), 0..6u32, 1..20u32)
    ) {
        let thresholds = Thresholds {
            prefill_decode_interval: interval,
            token_budget: 20,
            ttft_max_ticks,
            ..Thresholds::default()
        };
        let mut lockstep = Lockstep::new(schedulers(), Some(thresholds));
        let ticks = run(&mut lockstep, &arrivals);
        prop_assert_eq!(outputs(&ticks), arrivals.iter().map(Vec::len).sum::<usize>());
        prop_assert_eq!(lockstep.counts().iter().map(|(_, n)| n).sum::<u64>(), ticks.len() as u64);

        // Ticks since the last prefill, and ticks held in a row.
        let (mut since, mut held) = (None, 0);
        for (_, tick) in &ticks {
            let steps = || tick.steps.iter().flatten();
            let prefills = steps().any(|step| step.prefill_tokens > 0);
            let decodes = steps().any(|step| step.tokens.iter().any(|token| token.index > 0));
            if since.is_some_and(|ticks| ticks < interval) {
                prop_assert!(!(prefills && decodes), "the tick belongs to decode: {:?}", tick);
            }
            prop_assert!(!prefills || tick.cause.is_some_and(Cause::fires));
            if tick.cause == Some(Cause::Interval) {
                prop_assert!(since.is_some_and(|ticks| ticks < interval), "not after a prefill");
            }
            held = if tick.cause.is_some_and(Cause::fires) { 0 } else { held + 1 };
            prop_assert!(held <= interval + ttft_max_ticks);
            since = if prefills { Some(0) } else { since.map(|ticks| ticks + 1) };
        }
    }

    #[test]
    fn the_same_requests_give_the_same_ticks(arrivals in arrivals()) {
        let thresholds = Thresholds { prefill_decode_interval: 2, max_queue_ms: Some(9.0), ..Thresholds::default() };
        let again = || run(&mut Lockstep::new(schedulers(), Some(thresholds)), &arrivals);
        prop_assert_eq!(again(), again());
    }
}

#[test]
fn holding_gathers_prompts_into_fewer_and_fuller_passes() {
    // A prompt of 5 tokens on each rank every third tick, beside long outputs.
    let prompts = |tick: usize| {
        (0..RANKS)
            .map(|rank| (rank, 5, 3))
            .filter(move |_| tick.is_multiple_of(3))
    };
    let mut arrivals: Arrivals = (0..60).map(|tick| prompts(tick).collect()).collect();
    arrivals[0] = (0..RANKS).map(|rank| (rank, 5, 150)).collect();
    let passes = |thresholds: Option<Thresholds>| {
        let ticks = run(&mut Lockstep::new(schedulers(), thresholds), &arrivals);
        assert_eq!(outputs(&ticks), RANKS * 20);
        ticks
            .iter()
            .filter(|(_, t)| t.steps.iter().flatten().any(|s| s.prefill_tokens > 0))
            .count()
    };
    let eager = passes(None);
    let delayed = passes(Some(Thresholds {
        token_budget: 20,
        ..Thresholds::default()
    }));
    assert_eq!(eager, 20);
    assert!(delayed <= eager / 2, "{delayed} of {eager}");
}
