use super::*;
use crate::collective::Group;
use crate::delayer::{Cause, Thresholds};
use crate::gate::Gate;
use crate::preset::Preset;
use crate::scheduler::Scheduler;

/// A modelled step takes longer than any test.
const FROZEN: f64 = 1e9;

fn start(member: crate::collective::Member, time_scale: f64) -> (RankHandle, Threads) {
    let decisions = Decisions::default();
    let scheduler = Scheduler::new(Preset::default());
    let gate = Gate::new(member, decisions.clone());
    let clock = Clock::start(time_scale);
    let (task, handle) = RankTask::new(scheduler, decisions, clock, time_scale, 8);
    let mut threads = Threads::default();
    threads.start(0, &handle, task, gate).unwrap();
    (handle, threads)
}

fn submit(rank: &RankHandle, id: u64) -> mpsc::Receiver<Output> {
    rank.submit(Request {
        id,
        prompt_tokens: 10,
        output_tokens: 3,
        keys: Arc::new([]),
        arrived: rank.now(),
    })
    .unwrap()
}

async fn tokens(outputs: &mut mpsc::Receiver<Output>) -> usize {
    let mut tokens = 0;
    while let Some(output) = outputs.recv().await {
        tokens += usize::from(matches!(output, Output::Token { .. }));
    }
    tokens
}

#[tokio::test]
async fn a_rank_killed_while_another_waits_for_it_fails_open_and_the_other_goes_on() {
    let (group, members) = Group::new(2, Some(Thresholds::default()), None);
    let [a, b] = <[_; 2]>::try_from(members).unwrap();
    let (fast, _fast) = start(a, 0.0);
    let (stuck, _stuck) = start(b, FROZEN);

    let mut never = submit(&stuck, 1);
    assert!(never.recv().await.is_some(), "it is in its step");
    let mut outputs = submit(&fast, 2);
    while group.arrived() == 0 {
        tokio::task::yield_now().await;
    }
    stuck.harm(Harm::Kill, After::Now).await;
    assert!(!stuck.is_alive());
    assert_eq!(tokens(&mut outputs).await, 3);
    assert_eq!(tokens(&mut never).await, 0, "its requests end with it");
    let decisions = fast.decisions();
    assert_eq!(decisions.of(Cause::Error), 1);
    assert_eq!(decisions.of(Cause::First), 1);

    let mut outputs = submit(&fast, 3);
    assert_eq!(tokens(&mut outputs).await, 3);
    assert_eq!(fast.decisions().of(Cause::Error), 1, "once");
}

#[tokio::test]
async fn only_a_prefill_that_has_completed_arms_the_interval() {
    let interval = Thresholds {
        prefill_decode_interval: 2,
        ..Thresholds::default()
    };
    let (_group, members) = Group::new(1, Some(interval), None);
    let (rank, _rank) = start(members.into_iter().next().unwrap(), 0.0);
    let mut first = submit(&rank, 1);
    assert_eq!(tokens(&mut first).await, 3);
    let alone = rank.decisions();
    // Its own decode ticks, with nothing to prefill: nobody was held back.
    assert_eq!((alone.of(Cause::First), alone.of(Cause::Interval)), (1, 0));
    assert_eq!(alone.of(Cause::Vacuous), 2);
}

#[tokio::test]
async fn off_no_rank_decides_or_waits_for_another() {
    let (group, members) = Group::new(2, None, None);
    let [a, b] = <[_; 2]>::try_from(members).unwrap();
    let (fast, _fast) = start(a, 0.0);
    let (stuck, _stuck) = start(b, FROZEN);
    let mut never = submit(&stuck, 1);
    assert!(never.recv().await.is_some());
    assert_eq!(tokens(&mut submit(&fast, 2)).await, 3);
    assert_eq!(fast.decisions(), Counts::default());

    // Turned on, the fast one waits for the other; turned off again, it does not.
    group.set(Some(Thresholds::default()));
    let mut outputs = submit(&fast, 3);
    while group.arrived() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(outputs.try_recv().is_err());
    group.set(None);
    assert_eq!(tokens(&mut outputs).await, 3);
}
