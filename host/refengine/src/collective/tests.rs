use super::*;
use crate::delayer::{Cause, CollectiveError, Delayer, Outlook};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(future)
}

fn ones(outcome: Outcome) -> (Vector, usize) {
    match outcome {
        Outcome::Reduced { reduced, .. } => (reduced.sums, reduced.ranks),
        other => panic!("{other:?}"),
    }
}

fn on() -> Option<Thresholds> {
    Some(Thresholds::default())
}

fn three() -> (Group, [Member; 3]) {
    let (group, members) = Group::new(3, on(), None);
    (group, members.try_into().unwrap())
}

/// What has been decided already, without waiting.
fn now(member: &mut Member) -> Option<Outcome> {
    block_on(async {
        tokio::select! {
            biased;
            outcome = member.outcome() => Some(outcome),
            () = std::future::ready(()) => None,
        }
    })
}

fn is_called(member: &mut Member) -> bool {
    block_on(async {
        tokio::select! {
            biased;
            () = member.called() => true,
            () = std::future::ready(()) => false,
        }
    })
}

#[test]
fn every_thread_gets_the_same_sums_round_after_round() {
    let (_group, members) = Group::new(8, on(), None);
    let threads: Vec<_> = (1..=8i64)
        .zip(members)
        .map(|(rank, mut member)| {
            thread::spawn(move || {
                block_on(async {
                    let mut seen = Vec::new();
                    for round in 0..200 {
                        member.arrive(&[1, rank, round, 0, 0, 0, 0, i64::MAX]);
                        seen.push(ones(member.outcome().await));
                    }
                    seen
                })
            })
        })
        .collect();
    let expected: Vec<_> = (0..200)
        .map(|r| ([8, 36, 8 * r, 0, 0, 0, 0, i64::MAX], 8))
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected);
    }
}

#[test]
fn a_thread_killed_in_mid_collective_fails_the_round_for_all_and_the_others_go_on() {
    let (_group, [mut early, mut victim, mut late]) = three();
    let (arrived, has_arrived) = mpsc::channel();
    let waits = thread::spawn(move || {
        block_on(async {
            early.arrive(&[1; 8]);
            arrived.send(()).unwrap();
            let failed = early.outcome().await;
            early.arrive(&[1; 8]);
            (failed, early.outcome().await)
        })
    });
    has_arrived.recv().unwrap();
    let dies = thread::spawn(move || {
        victim.arrive(&[1; 8]);
        panic!("killed on purpose");
    });
    assert!(dies.join().is_err());

    late.arrive(&[10; 8]);
    assert_eq!(block_on(late.outcome()), Outcome::Failed, "told the same");
    late.arrive(&[10; 8]);
    let next = block_on(late.outcome());
    assert_eq!(ones(next), ([11; 8], 2), "without the one that is gone");
    assert_eq!(waits.join().unwrap(), (Outcome::Failed, next));
}

#[test]
fn whenever_threads_die_the_survivors_decide_alike() {
    const TICKS: usize = 300;
    let has = |rank: usize, tick: usize| Outlook {
        prefillable: !(tick * 7 + rank).is_multiple_of(5),
        pending_tokens: (tick * 31 + rank * 17) as u64 % 9000,
        running_decode: (tick + rank) as u64 % 3,
        kv_usage: 0.5,
        has_partial: tick.is_multiple_of(11),
        oldest_age_ms: 0.0,
    };
    let (_group, members) = Group::new(6, on(), None);
    let threads: Vec<_> = (members.into_iter().enumerate())
        .map(|(rank, mut member)| {
            // Ranks 0 to 3 die one after the other, on their own account.
            let last = if rank < 4 { 40 * (rank + 1) } else { TICKS };
            thread::spawn(move || {
                let mut delayer = Delayer::new(Thresholds {
                    prefill_decode_interval: 3,
                    ..Thresholds::default()
                });
                let mut causes = Vec::new();
                block_on(async {
                    for tick in 0..last {
                        let outlook = has(rank, tick);
                        member.arrive(&delayer.contribution(&outlook));
                        let cause = match member.outcome().await {
                            Outcome::Reduced { reduced, .. } => delayer.decide(Ok(reduced)),
                            Outcome::Failed => delayer.decide(Err(CollectiveError)),
                            Outcome::Off => panic!("nobody turned it off"),
                        };
                        if cause.fires() && outlook.prefillable {
                            delayer.notify_prefill_executed();
                        }
                        causes.push(cause);
                    }
                });
                causes
            })
        })
        .collect();
    let causes: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let longest = &causes[5];
    assert_eq!(longest.len(), TICKS);
    for other in &causes {
        assert_eq!(other[..], longest[..other.len()]);
    }
    assert!(longest.iter().filter(|c| **c == Cause::Error).count() <= 4);
}

#[test]
fn an_idle_rank_is_called_when_another_waits_and_not_before() {
    let (_group, [mut busy, mut idle, mut third]) = three();
    assert!(!is_called(&mut idle));
    busy.arrive(&[1; 8]);
    assert!(is_called(&mut idle));
    idle.arrive(&[0; 8]);
    assert_eq!(now(&mut idle), None);
    third.arrive(&[0; 8]);
    assert!(now(&mut idle).is_some() && now(&mut busy).is_some());
    assert!(!is_called(&mut idle), "that round is over");
    // It waits for the third, which dies: the idle one has a failure to hear of.
    busy.arrive(&[1; 8]);
    drop(third);
    assert_eq!(now(&mut busy), Some(Outcome::Failed));
    assert!(is_called(&mut idle));
    idle.arrive(&[0; 8]);
    assert_eq!(now(&mut idle), Some(Outcome::Failed));
    assert!(!is_called(&mut idle));
}

#[test]
fn a_rank_that_goes_while_nobody_waits_fails_nothing() {
    let (_group, [mut a, mut b, c]) = three();
    drop(c);
    a.arrive(&[1; 8]);
    b.arrive(&[1; 8]);
    assert_eq!(ones(now(&mut a).unwrap()).1, 2);
    drop(b);
    a.arrive(&[1; 8]);
    assert_eq!(ones(now(&mut a).unwrap()).1, 1);
}

#[test]
fn turned_off_nobody_waits_and_turned_on_again_all_begin_anew() {
    let (group, [mut a, mut b, mut c]) = three();
    a.arrive(&[1; 8]);
    group.set(None);
    assert_eq!((a.mode(), now(&mut a)), (None, Some(Outcome::Off)));
    assert!(!is_called(&mut b));
    b.arrive(&[1; 8]);
    group.set(on());
    assert_eq!(
        now(&mut b),
        Some(Outcome::Off),
        "it was off when this one came"
    );
    for member in [&mut a, &mut b, &mut c] {
        member.arrive(&[1; 8]);
    }
    let outcomes = [&mut a, &mut b, &mut c].map(|m| now(m).unwrap());
    assert_eq!(ones(outcomes[0]), ([3; 8], 3));
    assert_eq!(outcomes, [outcomes[0]; 3]);
    let Outcome::Reduced { mode, .. } = outcomes[0] else {
        panic!()
    };
    assert_eq!(mode.epoch, 1);
}

#[test]
fn thresholds_change_for_all_in_the_same_round() {
    let (group, [mut a, mut b, mut c]) = three();
    a.arrive(&[1; 8]);
    let four = Thresholds {
        prefill_decode_interval: 4,
        ..Thresholds::default()
    };
    group.set(Some(four));
    b.arrive(&[1; 8]);
    c.arrive(&[1; 8]);
    for member in [&mut a, &mut b, &mut c] {
        let Some(Outcome::Reduced { mode, .. }) = now(member) else {
            panic!()
        };
        assert_eq!(
            mode,
            Mode {
                thresholds: four,
                epoch: 0
            }
        );
    }
}

#[test]
fn turned_off_and_on_at_any_moment_no_thread_hangs_and_all_see_the_same_rounds() {
    let (group, members) = Group::new(4, None, None);
    let done = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (1..=4i64)
        .zip(members)
        .map(|(rank, mut member)| {
            let (done, rounds) = (done.clone(), rounds.clone());
            thread::spawn(move || {
                let mut seen = Vec::new();
                while !done.load(Ordering::Acquire) {
                    if member.mode().is_none() {
                        thread::yield_now();
                        continue;
                    }
                    member.arrive(&[rank; 8]);
                    if let Outcome::Reduced { reduced, mode } = block_on(member.outcome()) {
                        seen.push((mode.epoch, reduced));
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                }
                seen
            })
        })
        .collect();
    for turn in 0..3000 {
        group.set((turn % 2 == 0).then(Thresholds::default));
        if turn % 3 == 0 {
            thread::yield_now();
        }
    }
    group.set(on());
    let enough = rounds.load(Ordering::Relaxed) + 400;
    while rounds.load(Ordering::Relaxed) < enough {
        thread::yield_now();
    }
    done.store(true, Ordering::Release);
    let seen: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    // Whoever ends last has seen a few more, of fewer ranks.
    let shortest = seen.iter().map(Vec::len).min().unwrap();
    assert!(shortest > 0);
    for others in &seen {
        assert_eq!(others[..shortest], seen[0][..shortest]);
    }
    let whole = Reduced {
        sums: [10; 8],
        ranks: 4,
    };
    assert!(
        seen[0][..shortest]
            .iter()
            .all(|(_, reduced)| *reduced == whole)
    );
}

#[test]
fn a_thread_that_hangs_is_left_out_after_the_timeout_and_agrees_when_it_is_back() {
    let timeout = std::time::Duration::from_millis(500);
    let (group, members) = Group::new(4, on(), Some(timeout));
    let done = Arc::new(AtomicBool::new(false));
    let (wake, hangs) = mpsc::channel::<()>();
    let mut hangs = Some(hangs);
    // How many took part in a round, as rank 0 saw it last.
    let took_part = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (members.into_iter().enumerate())
        .map(|(rank, mut member)| {
            let (done, took_part) = (done.clone(), took_part.clone());
            let mut hangs = (rank == 3).then(|| hangs.take().unwrap());
            thread::spawn(move || {
                let mut heard = Vec::new();
                while !done.load(Ordering::Acquire) {
                    if heard.len() == 20
                        && let Some(hangs) = hangs.take()
                    {
                        hangs.recv().unwrap();
                    }
                    member.arrive(&[1; 8]);
                    let outcome = block_on(member.outcome());
                    if let (0, Outcome::Reduced { reduced, .. }) = (rank, outcome) {
                        took_part.store(reduced.ranks, Ordering::Release);
                    }
                    heard.push(outcome);
                }
                heard
            })
        })
        .collect();
    let until = |ranks| {
        while took_part.load(Ordering::Acquire) != ranks {
            thread::yield_now();
        }
    };
    until(4);
    until(3);
    assert_eq!(group.suspended(), [false, false, false, true]);
    wake.send(()).unwrap();
    until(4);
    assert_eq!(group.suspended(), [false; 4]);
    // Whoever sees that first leaves: the others hear of it in the round after.
    done.store(true, Ordering::Release);
    let heard: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();

    let back = |heard: &[Outcome]| -> Vec<Outcome> {
        let failed = heard.iter().position(|o| *o == Outcome::Failed).unwrap();
        let whole =
            |o: &&Outcome| matches!(o, Outcome::Reduced { reduced, .. } if reduced.ranks == 4);
        heard[failed..].iter().filter(whole).copied().collect()
    };
    let backs: Vec<_> = heard.iter().map(|heard| back(heard)).collect();
    let shortest = backs.iter().map(Vec::len).min().unwrap();
    assert!(shortest > 0);
    for other in &backs {
        assert_eq!(other[..shortest], backs[0][..shortest]);
    }
    let Outcome::Reduced { mode, .. } = backs[0][0] else {
        panic!()
    };
    assert!(mode.epoch > 0, "all decide anew");
}
