//! What a rank has done, as JSON and as Prometheus text.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::delayer::Counts;

/// One rank's figures. Gauges say what is; totals count since the start or the last `POST /reset`.
///
/// With no request in flight and none cancelled, `prompt_tokens_total` is the sum of
/// `cached_tokens_total` and `prefill_tokens_computed_total`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RankStats {
    /// Gauge: its thread runs. One that is dead stays so; its requests have ended, and it takes none.
    pub alive: bool,
    /// Gauge: the other ranks decide without it, because it did not come in time.
    pub suspended: bool,
    /// Gauge: sequences in the batch.
    pub requests_running: u64,
    /// Gauge: requests that wait for a place in it.
    pub requests_waiting: u64,
    /// Gauge: cache blocks that are not free.
    pub cache_blocks_used: u64,
    /// Gauge: those of them that running sequences hold.
    pub cache_blocks_referenced: u64,
    /// Gauge: all cache blocks.
    pub cache_blocks_capacity: u64,
    /// Gauge: the part of the cache that running sequences hold, 0 to 1.
    pub kv_usage: f64,
    /// Requests accepted.
    pub requests_total: u64,
    /// Requests that their client gave up.
    pub cancelled_total: u64,
    /// Prompt tokens of the requests that began to run.
    pub prompt_tokens_total: u64,
    /// Those of them found in the prefix cache.
    pub cached_tokens_total: u64,
    /// Prompt tokens computed.
    pub prefill_tokens_computed_total: u64,
    /// Tokens generated.
    pub generation_tokens_total: u64,
    /// Those of them that decoding yielded; each request's first one comes from prefill.
    pub decode_tokens_total: u64,
    /// Cache blocks evicted.
    pub cache_evictions_total: u64,
    /// Steps (forward passes).
    pub steps_total: u64,
    /// Modelled time spent in steps, seconds, before the time scale.
    pub busy_seconds_total: f64,
    /// Of all first tokens, the modelled seconds since their request came.
    pub time_to_first_token_seconds_sum: f64,
    /// First tokens.
    pub time_to_first_token_seconds_count: u64,
    /// Of all further tokens, the modelled seconds since the one before.
    pub inter_token_latency_seconds_sum: f64,
    /// Further tokens.
    pub inter_token_latency_seconds_count: u64,
}

/// What requests waited for their tokens, modelled time (at time scale 0 the machine's).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Latency {
    first: Waited,
    next: Waited,
}

#[derive(Debug, Clone, Copy, Default)]
struct Waited {
    seconds: f64,
    count: u64,
}

impl Waited {
    fn add(&mut self, waited: Duration) {
        self.seconds += waited.as_secs_f64();
        self.count += 1;
    }
}

impl Latency {
    /// A first token, so long after its request came.
    pub(crate) fn first(&mut self, waited: Duration) {
        self.first.add(waited);
    }

    /// Another token, so long after the one before.
    pub(crate) fn next(&mut self, waited: Duration) {
        self.next.add(waited);
    }

    pub(crate) fn add_to(self, stats: RankStats) -> RankStats {
        RankStats {
            time_to_first_token_seconds_sum: self.first.seconds,
            time_to_first_token_seconds_count: self.first.count,
            inter_token_latency_seconds_sum: self.next.seconds,
            inter_token_latency_seconds_count: self.next.count,
            ..stats
        }
    }
}

impl RankStats {
    /// The same with nothing running, waiting or cached any more.
    pub(crate) fn of_the_dead(self) -> Self {
        Self {
            alive: false,
            requests_running: 0,
            requests_waiting: 0,
            cache_blocks_used: 0,
            cache_blocks_referenced: 0,
            kv_usage: 0.0,
            ..self
        }
    }
}

/// All ranks' figures: the body of `GET /stats`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineStats {
    /// The engine's name.
    pub name: String,
    /// Completions that misbehaved because of `POST /fault`, since the start.
    pub faults_total: u64,
    /// One entry a rank, in order.
    pub ranks: Vec<RankStats>,
    /// What each rank's prefill delayer decided, by cause; all zero while it is off.
    #[serde(default)]
    pub prefill_delayer: Vec<Counts>,
}

type Read = fn(&RankStats) -> f64;

/// Metric (without the common prefix), type, help, value.
const METRICS: [(&str, &str, &str, Read); 22] = [
    ("alive", "gauge", "1: the rank's thread runs.", |s| {
        s.alive.into()
    }),
    (
        "suspended",
        "gauge",
        "1: the other ranks decide without it, because it did not come in time.",
        |s| s.suspended.into(),
    ),
    (
        "requests_running",
        "gauge",
        "Sequences in the batch.",
        |s| s.requests_running as f64,
    ),
    (
        "requests_waiting",
        "gauge",
        "Requests waiting for a place in the batch.",
        |s| s.requests_waiting as f64,
    ),
    (
        "cache_blocks_used",
        "gauge",
        "Cache blocks that are not free.",
        |s| s.cache_blocks_used as f64,
    ),
    (
        "cache_blocks_referenced",
        "gauge",
        "Cache blocks held by running sequences.",
        |s| s.cache_blocks_referenced as f64,
    ),
    ("cache_blocks_capacity", "gauge", "All cache blocks.", |s| {
        s.cache_blocks_capacity as f64
    }),
    (
        "kv_usage",
        "gauge",
        "The part of the cache held by running sequences, 0 to 1.",
        |s| s.kv_usage,
    ),
    ("requests_total", "counter", "Requests accepted.", |s| {
        s.requests_total as f64
    }),
    (
        "cancelled_total",
        "counter",
        "Requests given up by their client.",
        |s| s.cancelled_total as f64,
    ),
    (
        "prompt_tokens_total",
        "counter",
        "Prompt tokens of requests that began to run.",
        |s| s.prompt_tokens_total as f64,
    ),
    (
        "cached_tokens_total",
        "counter",
        "Prompt tokens found in the prefix cache.",
        |s| s.cached_tokens_total as f64,
    ),
    (
        "prefill_tokens_computed_total",
        "counter",
        "Prompt tokens computed.",
        |s| s.prefill_tokens_computed_total as f64,
    ),
    (
        "generation_tokens_total",
        "counter",
        "Tokens generated.",
        |s| s.generation_tokens_total as f64,
    ),
    (
        "decode_tokens_total",
        "counter",
        "Tokens generated other than the first of each request.",
        |s| s.decode_tokens_total as f64,
    ),
    (
        "cache_evictions_total",
        "counter",
        "Cache blocks evicted.",
        |s| s.cache_evictions_total as f64,
    ),
    ("steps_total", "counter", "Forward passes.", |s| {
        s.steps_total as f64
    }),
    (
        "busy_seconds_total",
        "counter",
        "Modelled seconds spent in forward passes.",
        |s| s.busy_seconds_total,
    ),
    (
        "time_to_first_token_seconds_sum",
        "counter",
        "Modelled seconds from a request's arrival to its first token.",
        |s| s.time_to_first_token_seconds_sum,
    ),
    (
        "time_to_first_token_seconds_count",
        "counter",
        "First tokens.",
        |s| s.time_to_first_token_seconds_count as f64,
    ),
    (
        "inter_token_latency_seconds_sum",
        "counter",
        "Modelled seconds between a request's tokens.",
        |s| s.inter_token_latency_seconds_sum,
    ),
    (
        "inter_token_latency_seconds_count",
        "counter",
        "Tokens after the first.",
        |s| s.inter_token_latency_seconds_count as f64,
    ),
];

impl EngineStats {
    /// The Prometheus text format, one sample a rank, labelled `engine="RANK"` as vLLM does.
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        for (name, kind, help, read) in METRICS {
            let name = format!("pointsman_engine_{name}");
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (rank, stats) in self.ranks.iter().enumerate() {
                let _ = writeln!(text, "{name}{{engine=\"{rank}\"}} {}", read(stats));
            }
        }
        let name = "pointsman_engine_prefill_delayer_decisions_total";
        let help = "Ticks in which the prefill delayer fired or held, by cause.";
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
        for (rank, counts) in self.prefill_delayer.iter().enumerate() {
            for (cause, n) in counts.iter() {
                let (decision, cause) = (cause.decision(), cause.as_str());
                let _ = writeln!(
                    text,
                    "{name}{{engine=\"{rank}\",decision=\"{decision}\",cause=\"{cause}\"}} {n}"
                );
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_of_the_json_is_a_metric_of_every_rank() {
        let rank = RankStats {
            requests_total: 7,
            busy_seconds_total: 0.5,
            ..RankStats::default()
        };
        let stats = EngineStats {
            name: "a".into(),
            ranks: vec![RankStats::default(), rank],
            ..EngineStats::default()
        };
        let text = stats.to_prometheus();
        let json = serde_json::to_value(rank).unwrap();
        for figure in json.as_object().unwrap().keys() {
            for rank in 0..2 {
                let sample = format!("\npointsman_engine_{figure}{{engine=\"{rank}\"}} ");
                assert!(text.contains(&sample), "{sample} is missing in\n{text}");
            }
        }
        assert!(text.contains("pointsman_engine_requests_total{engine=\"1\"} 7\n"));
        assert!(text.contains("# TYPE pointsman_engine_requests_total counter\n"));
        assert!(text.contains("pointsman_engine_busy_seconds_total{engine=\"1\"} 0.5\n"));
    }
}
