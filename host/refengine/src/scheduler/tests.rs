use super::*;
use crate::cost::CostModel;

/// Blocks of 4 tokens; a step lasts 1 ms and 1 ms for each prompt token it computes.
fn preset() -> Preset {
    Preset {
        name: "test".into(),
        cost: CostModel {
            step_base_us: 1000.0,
            prefill_token_us: 1000.0,
            prefill_attention_us: 0.0,
            decode_sequence_us: 0.0,
            decode_context_us: 0.0,
        },
        max_num_batched_tokens: 10,
        max_num_seqs: 4,
        block_tokens: 4,
        cache_blocks: 100,
    }
}

/// A prompt whose full blocks are `first`, `first + 1`, …; the output's blocks have no keys.
fn request(id: u64, prompt_tokens: usize, output_tokens: usize, first: u64) -> Request {
    let keys = (first..first + prompt_tokens as u64 / 4).collect();
    Request {
        id,
        prompt_tokens,
        output_tokens,
        keys,
        arrived: Duration::ZERO,
    }
}

fn scheduler(preset: Preset, requests: &[Request]) -> Scheduler {
    let mut scheduler = Scheduler::new(preset);
    requests
        .iter()
        .for_each(|r| scheduler.push(r.clone()).unwrap());
    scheduler
}

/// Steps until there is nothing left to do.
fn drain(scheduler: &mut Scheduler) -> Vec<Step> {
    std::iter::from_fn(|| scheduler.step(Admission::Fire)).collect()
}

fn ids(tokens: &[Token]) -> Vec<u64> {
    tokens.iter().map(|t| t.id).collect()
}

#[test]
fn a_prompt_is_computed_in_chunks_and_its_last_chunk_yields_the_first_token() {
    let mut s = scheduler(preset(), &[request(1, 25, 2, 0)]);
    let steps = drain(&mut s);
    assert_eq!(
        steps.iter().map(|s| s.prefill_tokens).collect::<Vec<_>>(),
        [10, 10, 5, 0]
    );
    assert_eq!(
        steps[0].started,
        [Started {
            id: 1,
            cached_tokens: 0
        }]
    );
    assert_eq!(steps[0].duration, Duration::from_millis(11));
    assert_eq!(steps[1].tokens, []);
    assert_eq!(
        steps[2].tokens,
        [Token {
            id: 1,
            index: 0,
            last: false
        }]
    );
    assert_eq!(
        steps[3].tokens,
        [Token {
            id: 1,
            index: 1,
            last: true
        }]
    );
    assert_eq!(s.step(Admission::Fire), None);
}

#[test]
fn a_running_sequence_gets_a_token_in_every_step_while_others_prefill() {
    let mut s = scheduler(preset(), &[request(1, 4, 9, 0)]);
    s.step(Admission::Fire).unwrap();
    s.push(request(2, 20, 1, 50)).unwrap();
    let steps = drain(&mut s);
    assert!(
        steps
            .iter()
            .take(8)
            .all(|step| ids(&step.tokens).contains(&1))
    );
    assert_eq!(
        steps
            .iter()
            .map(|s| s.prefill_tokens)
            .take(4)
            .collect::<Vec<_>>(),
        [9, 9, 2, 0]
    );
    assert_eq!(ids(&steps[2].tokens), [1, 2]);
}

#[test]
fn no_step_exceeds_the_token_budget_or_the_sequence_limit() {
    let requests: Vec<_> = (0..40)
        .map(|i| {
            request(
                i,
                1 + (i as usize * 7) % 23,
                1 + (i as usize * 5) % 11,
                i * 100,
            )
        })
        .collect();
    let mut s = scheduler(preset(), &requests);
    let (mut running, mut most) = (0, 0);
    while let Some(step) = s.step(Admission::Fire) {
        let decoded = step.tokens.iter().filter(|t| t.index > 0).count();
        assert!(step.prefill_tokens + decoded <= 10, "{step:?}");
        running += step.started.len();
        most = most.max(running);
        assert!(running <= 4, "{step:?}");
        running -= step.tokens.iter().filter(|t| t.last).count();
    }
    let stats = s.stats();
    let sum = |f: fn(&Request) -> usize| requests.iter().map(f).sum::<usize>() as u64;
    assert_eq!(most, 4);
    assert_eq!(stats.prompt_tokens_total, sum(|r| r.prompt_tokens));
    assert_eq!(
        stats.prefill_tokens_computed_total,
        sum(|r| r.prompt_tokens)
    );
    assert_eq!(stats.generation_tokens_total, sum(|r| r.output_tokens));
    assert_eq!(
        (
            stats.requests_running,
            stats.requests_waiting,
            stats.cache_blocks_referenced
        ),
        (0, 0, 0)
    );
}

#[test]
fn the_same_pushes_give_the_same_steps() {
    let run = || {
        let mut s = scheduler(preset(), &[]);
        let mut steps = Vec::new();
        for i in 0..50 {
            s.push(request(
                i,
                1 + (i as usize * 13) % 40,
                1 + (i as usize) % 7,
                i % 5,
            ))
            .unwrap();
            s.cancel(i / 2);
            steps.extend(s.step(Admission::Fire));
        }
        steps.extend(drain(&mut s));
        (steps, s.stats())
    };
    assert_eq!(run(), run());
}

#[test]
fn a_prompt_seen_before_is_cached_but_for_the_block_of_its_last_token() {
    let mut s = scheduler(preset(), &[request(1, 8, 1, 0)]);
    drain(&mut s);
    for (prompt_tokens, first, cached_tokens) in [(8, 0, 4), (9, 0, 8), (7, 0, 4), (9, 50, 0)] {
        s.push(request(2, prompt_tokens, 1, first)).unwrap();
        let step = s.step(Admission::Fire).unwrap();
        assert_eq!(
            step.started,
            [Started {
                id: 2,
                cached_tokens
            }]
        );
        assert_eq!(step.prefill_tokens, prompt_tokens - cached_tokens);
    }
}

#[test]
fn a_block_of_the_output_is_found_by_the_next_turn() {
    // 6 prompt tokens, 7 output tokens: the KV of the last one is never computed.
    let first = Request {
        id: 1,
        prompt_tokens: 6,
        output_tokens: 7,
        keys: (0..3).collect(),
        arrived: Duration::ZERO,
    };
    let mut s = scheduler(preset(), &[first]);
    drain(&mut s);
    s.push(request(2, 20, 1, 0)).unwrap();
    assert_eq!(
        s.step(Admission::Fire).unwrap().started,
        [Started {
            id: 2,
            cached_tokens: 12
        }]
    );
}

#[test]
fn a_request_without_room_in_the_cache_waits_and_so_do_those_behind_it() {
    let small = Preset {
        cache_blocks: 5,
        ..preset()
    };
    let mut s = scheduler(
        small,
        &[
            request(1, 4, 12, 0),
            request(2, 8, 1, 50),
            request(3, 1, 1, 90),
        ],
    );
    let step = s.step(Admission::Fire).unwrap();
    assert_eq!(step.started.iter().map(|s| s.id).collect::<Vec<_>>(), [1]);
    assert_eq!(s.stats().requests_waiting, 2);
    assert_eq!(
        ids(&drain(&mut s)
            .iter()
            .flat_map(|s| s.tokens.clone())
            .filter(|t| t.last)
            .collect::<Vec<_>>()),
        [1, 2, 3]
    );
}

#[test]
fn a_request_that_can_never_fit_is_refused() {
    let mut s = scheduler(preset(), &[request(1, 399, 1, 0)]);
    assert_eq!(
        s.push(request(2, 400, 1, 0)),
        Err(TooLong {
            tokens: 401,
            limit: 400
        })
    );
    assert_eq!(s.stats().requests_total, 1);
}

#[test]
fn cancel_frees_the_blocks_at_once_waiting_or_running() {
    let one = Preset {
        max_num_seqs: 1,
        ..preset()
    };
    let mut s = scheduler(one, &[request(1, 20, 5, 0), request(2, 4, 1, 50)]);
    s.step(Admission::Fire).unwrap();
    assert_eq!(s.stats().cache_blocks_referenced, 7);
    assert!(s.cancel(2));
    assert!(s.cancel(1));
    assert!(!s.cancel(1));
    let stats = s.stats();
    assert_eq!(
        (
            stats.cache_blocks_referenced,
            stats.requests_running,
            stats.requests_waiting
        ),
        (0, 0, 0)
    );
    assert_eq!(
        (stats.cache_blocks_used, stats.cancelled_total),
        (2, 2),
        "what was computed stays"
    );
    assert_eq!(s.step(Admission::Fire), None);
}

#[test]
fn a_held_step_decodes_and_lets_no_prompt_go_on() {
    let mut s = scheduler(preset(), &[request(1, 4, 3, 0), request(2, 20, 1, 50)]);
    s.step(Admission::Fire).unwrap();
    s.push(request(3, 4, 1, 90)).unwrap();
    let held = s.step(Admission::Hold).unwrap();
    assert_eq!(
        (held.prefill_tokens, ids(&held.tokens), held.started),
        (0, vec![1], vec![])
    );
    s.step(Admission::Hold).unwrap();
    assert_eq!(s.step(Admission::Hold), None, "nothing decodes any more");
    assert_eq!(s.step(Admission::Fire).unwrap().prefill_tokens, 10);
}

#[test]
fn reset_forgets_cached_blocks_and_totals_and_leaves_what_runs() {
    let tight = Preset {
        cache_blocks: 6,
        ..preset()
    };
    let mut s = scheduler(tight, &[request(1, 8, 1, 0), request(2, 20, 2, 50)]);
    while s
        .step(Admission::Fire)
        .is_some_and(|step| step.tokens.iter().all(|t| t.id != 2))
    {}
    assert!(s.stats().cache_evictions_total > 0);
    s.reset();
    let stats = s.stats();
    assert_eq!(
        (
            stats.requests_total,
            stats.cache_evictions_total,
            stats.requests_running
        ),
        (0, 0, 1)
    );
    assert_eq!(stats.cache_blocks_used, stats.cache_blocks_referenced);
    assert_eq!(ids(&s.step(Admission::Fire).unwrap().tokens), [2]);
}

#[test]
fn an_empty_request_yields_one_token_and_ends() {
    let mut s = scheduler(preset(), &[request(1, 0, 0, 0)]);
    let steps = drain(&mut s);
    let token = Token {
        id: 1,
        index: 0,
        last: true,
    };
    assert_eq!((steps.len(), &steps[0].tokens), (1, &vec![token]));
}

#[test]
fn the_outlook_says_what_could_be_prefilled_and_what_is_in_the_way() {
    let small = Preset {
        max_num_seqs: 2,
        cache_blocks: 10,
        ..preset()
    };
    let mut s = scheduler(small, &[]);
    let at = Duration::from_millis;
    let idle = s.outlook(at(0));
    assert_eq!(idle, Outlook::default());
    assert!(s.is_idle());

    let arrives = |request, ms| Request {
        arrived: at(ms),
        ..request
    };
    s.push(arrives(request(1, 18, 2, 0), 10)).unwrap();
    s.push(arrives(request(2, 5, 1, 50), 20)).unwrap();
    s.push(arrives(request(3, 5, 1, 60), 30)).unwrap();
    let waiting = s.outlook(at(25));
    assert_eq!(
        waiting,
        Outlook {
            prefillable: true,
            pending_tokens: 18,
            oldest_age_ms: 15.0,
            ..idle
        },
        "not more than a pass holds is counted"
    );

    s.step(Admission::Fire).unwrap();
    let partial = s.outlook(at(25));
    assert_eq!(
        partial,
        Outlook {
            prefillable: true,
            pending_tokens: 13,
            kv_usage: 0.5,
            has_partial: true,
            oldest_age_ms: 5.0,
            ..idle
        }
    );

    s.step(Admission::Fire).unwrap();
    let both = s.outlook(at(25));
    assert_eq!((both.running_decode, both.has_partial), (1, true));
    s.step(Admission::Hold).unwrap();
    let after = s.outlook(at(40));
    assert_eq!((after.running_decode, after.prefillable), (0, true));
}

#[test]
fn a_full_batch_or_a_full_cache_is_not_prefillable() {
    let one = Preset {
        max_num_seqs: 1,
        ..preset()
    };
    let tight = Preset {
        cache_blocks: 4,
        ..preset()
    };
    for full in [one, tight] {
        let mut s = scheduler(full, &[request(1, 4, 9, 0), request(2, 4, 9, 50)]);
        s.step(Admission::Fire).unwrap();
        let outlook = s.outlook(Duration::ZERO);
        assert_eq!((outlook.prefillable, outlook.pending_tokens), (false, 4));
        drain(&mut s);
        assert!(!s.outlook(Duration::ZERO).prefillable);
    }
}

#[test]
fn what_the_cache_has_is_not_pending_and_makes_room_only_once() {
    let tight = Preset {
        cache_blocks: 4,
        ..preset()
    };
    let mut s = scheduler(tight, &[request(1, 9, 1, 0)]);
    drain(&mut s);
    s.push(request(2, 9, 3, 0)).unwrap();
    assert_eq!(s.outlook(Duration::ZERO).pending_tokens, 1);
    s.step(Admission::Fire).unwrap();
    // Its first two blocks are there, but held: together with a third they fit.
    s.push(request(3, 9, 3, 0)).unwrap();
    assert!(s.outlook(Duration::ZERO).prefillable);
    s.push(request(4, 9, 3, 0)).unwrap();
    s.step(Admission::Fire).unwrap();
    assert!(!s.outlook(Duration::ZERO).prefillable);
}
