//! What is counted. Each thread counts for itself, without contention; a scrape adds up.

use crate::witnesses::Witnesses;
use crate::{shadow_metrics, target_metrics};
use hashbrown::{Equivalent, HashMap};
use pointsman_core::{Affinity, Core, Phase, Source};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Series of one thread beyond this are counted together: engines may answer with any status.
const MAX_SERIES: usize = 4096;

/// Upper bounds of the decision times, in ns.
const BOUNDS_NS: [u64; 14] = [
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    10_000_000,
    100_000_000,
];

/// What happens to upstream connections.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Connection {
    /// a new one
    Opened,
    /// an idle one was taken
    Reused,
    /// it turned out to be dead
    Stale,
}

/// Why a request is sent anew.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Retry {
    /// no connection, or it broke before the head
    Connection,
    /// no head in time
    Timeout,
    /// a status of 500 or more
    Status,
}

const AFFINITY: [&str; 7] = [
    "new",
    "owner",
    "spill",
    "explicit",
    "adopted",
    "unkeyed",
    "parent_ignored",
];
const PARENT_IGNORED: usize = 6;

/// What one thread counts.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    requests: Mutex<HashMap<Request, u64>>,
    failures: Mutex<HashMap<(String, &'static str), u64>>,
    affinity: [AtomicU64; 7],
    retries: [AtomicU64; 3],
    connections: [AtomicU64; 3],
    without_session: AtomicU64,
    usage_missing: AtomicU64,
    decisions: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    policy: String,
    phase: &'static str,
    reason: String,
    code: u16,
}

#[derive(Hash)]
struct RequestRef<'a> {
    policy: &'a str,
    phase: &'static str,
    reason: &'a str,
    code: u16,
}

impl Equivalent<Request> for RequestRef<'_> {
    fn equivalent(&self, key: &Request) -> bool {
        (self.policy, self.phase, self.reason, self.code)
            == (
                key.policy.as_str(),
                key.phase,
                key.reason.as_str(),
                key.code,
            )
    }
}

impl Tally {
    /// A request was answered.
    pub(crate) fn request(&self, policy: &str, phase: Phase, reason: &str, code: u16) {
        let phase = phase.as_str();
        let key = RequestRef {
            policy,
            phase,
            reason,
            code,
        };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = requests.get_mut(&key) {
            *count += 1;
            return;
        }
        let full = requests.len() >= MAX_SERIES;
        let key = Request {
            policy: if full { "other" } else { policy }.to_owned(),
            phase,
            reason: if full { "other" } else { reason }.to_owned(),
            code: if full { 0 } else { code },
        };
        *requests.entry(key).or_insert(0) += 1;
    }

    /// A policy gave no usable answer.
    pub(crate) fn policy_failure(&self, policy: &str, cause: &'static str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures.entry((policy.to_owned(), cause)).or_insert(0) += 1;
    }

    pub(crate) fn decision(&self, took: Duration) {
        self.decisions.observe(took);
    }

    pub(crate) fn affinity(&self, affinity: Affinity) {
        let name = affinity.as_str();
        if let Some(at) = AFFINITY.iter().position(|&known| known == name) {
            count(&self.affinity, at);
        }
    }

    pub(crate) fn parent_ignored(&self) {
        count(&self.affinity, PARENT_IGNORED);
    }

    pub(crate) fn without_session(&self) {
        self.without_session.fetch_add(1, Relaxed);
    }

    pub(crate) fn usage_missing(&self) {
        self.usage_missing.fetch_add(1, Relaxed);
    }

    pub(crate) fn retry(&self, cause: Retry) {
        count(&self.retries, cause as usize);
    }

    pub(crate) fn connection(&self, event: Connection) {
        count(&self.connections, event as usize);
    }
}

fn count(counters: &[AtomicU64], at: usize) {
    if let Some(counter) = counters.get(at) {
        counter.fetch_add(1, Relaxed);
    }
}

/// The library's own has a lock.
#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    fn observe(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        count(
            &self.buckets,
            BOUNDS_NS.partition_point(|&bound| bound < ns),
        );
        self.sum_ns.fetch_add(ns, Relaxed);
    }
}

/// Adds up all threads' tallies, and reads the state of the fleet.
pub(crate) struct Scrape {
    pub(crate) tallies: Vec<Arc<Tally>>,
    pub(crate) core: Arc<Core>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) witnesses: Witnesses,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

pub(crate) type Labels = Vec<(&'static str, String)>;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.requests(&mut encoder)?;
        self.policies(&mut encoder)?;
        self.decisions(&mut encoder)?;
        self.fixed(&mut encoder)?;
        target_metrics::encode(&self.core, &mut encoder)?;
        self.bindings(&mut encoder)?;
        match &*self.witnesses.shadow.load() {
            Some(shadow) => shadow_metrics::encode(&shadow.report(), &mut encoder),
            None => Ok(()),
        }
    }
}

impl Scrape {
    fn requests(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let mut sums = BTreeMap::<Request, u64>::new();
        for tally in &self.tallies {
            let requests = tally
                .requests
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            for (key, n) in requests.iter() {
                *sums.entry(key.clone()).or_default() += n;
            }
        }
        let series = sums.into_iter().map(|(key, n)| {
            let labels = vec![
                ("policy", key.policy),
                ("phase", key.phase.to_owned()),
                ("reason", key.reason),
                ("code", key.code.to_string()),
            ];
            (labels, n)
        });
        counters(encoder, "pointsman_requests", "Requests answered", series)
    }

    fn policies(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let mut sums = BTreeMap::new();
        for tally in &self.tallies {
            let failures = tally
                .failures
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            for (key, n) in failures.iter() {
                *sums.entry(key.clone()).or_default() += n;
            }
        }
        let series = (sums.into_iter())
            .map(|((policy, cause), n)| (vec![("policy", policy), ("cause", cause.to_owned())], n));
        let help = "Decisions that the policy did not make";
        counters(encoder, "pointsman_policy_failures", help, series)?;
        let generation = ConstGauge::new(signed(self.source.generation()));
        gauge(
            encoder,
            "pointsman_policy_generation",
            "Replacements of the policy",
            &generation,
        )
    }

    fn decisions(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let sum =
            |of: &dyn Fn(&Tally) -> u64| self.tallies.iter().map(|tally| of(tally)).sum::<u64>();
        let bounds = BOUNDS_NS
            .iter()
            .map(|&ns| seconds(ns))
            .chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = (bounds.enumerate())
            .map(|(at, bound)| {
                let n = |tally: &Tally| {
                    (tally.decisions.buckets.get(at)).map_or(0, |bucket| bucket.load(Relaxed))
                };
                (bound, sum(&n))
            })
            .collect();
        let count = buckets.iter().map(|(_, n)| n).sum();
        let total = seconds(sum(&|tally| tally.decisions.sum_ns.load(Relaxed)));
        let help = "Time of a decision: ask the policy, check its answer, commit it";
        encoder
            .encode_descriptor(
                "pointsman_decision_seconds",
                help,
                None,
                MetricType::Histogram,
            )?
            .encode_histogram::<NoLabelSet>(total, count, &buckets, None)
    }

    fn fixed(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let sum = |of: &dyn Fn(&Tally) -> Option<&AtomicU64>| {
            (self.tallies.iter())
                .filter_map(|tally| of(tally))
                .map(|n| n.load(Relaxed))
                .sum::<u64>()
        };
        let of = |label, names: &[&str], counter: &dyn Fn(&Tally, usize) -> Option<&AtomicU64>| {
            (names.iter().enumerate())
                .map(|(at, name)| {
                    (
                        vec![(label, (*name).to_owned())],
                        sum(&|tally| counter(tally, at)),
                    )
                })
                .collect::<Vec<_>>()
        };
        let series = of("event", &AFFINITY, &|tally, at| tally.affinity.get(at));
        counters(
            encoder,
            "pointsman_affinity",
            "What became of sessions",
            series.into_iter(),
        )?;
        let causes = ["connection", "timeout", "status"];
        let series = of("cause", &causes, &|tally, at| tally.retries.get(at));
        counters(
            encoder,
            "pointsman_retries",
            "Requests sent anew",
            series.into_iter(),
        )?;
        let events = ["opened", "reused", "stale"];
        let series = of("event", &events, &|tally, at| tally.connections.get(at));
        let help = "Connections to engines";
        counters(
            encoder,
            "pointsman_upstream_connections",
            help,
            series.into_iter(),
        )?;
        let plain = [
            (
                "pointsman_requests_without_session",
                "Requests that carried no session id",
                sum(&|tally| Some(&tally.without_session)),
            ),
            (
                "pointsman_usage_missing",
                "Prompts whose tokens the engine did not count in its answer: estimates are blind",
                sum(&|tally| Some(&tally.usage_missing)),
            ),
        ];
        for (name, help, n) in plain {
            let descriptor = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(n).encode(descriptor)?;
        }
        Ok(())
    }

    fn bindings(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let bindings = self.core.bindings().len();
        let bindings = ConstGauge::new(i64::try_from(bindings).unwrap_or(i64::MAX));
        gauge(
            encoder,
            "pointsman_bindings",
            "Bindings in the affinity table",
            &bindings,
        )
    }
}

pub(crate) fn counters(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, n) in series {
        ConstCounter::new(n).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

pub(crate) fn gauge(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    value: &ConstGauge<i64>,
) -> fmt::Result {
    value.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

pub(crate) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}
