//! The summary of a run, and several of them side by side.

mod table;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;

use crate::record::Record;
use crate::stats::Distribution;

/// What one policy made of the traffic. Figures without a sample are 0.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Name of the policy or baseline.
    pub policy: String,
    /// Requests sent, failed ones included.
    pub requests: usize,
    /// Requests that failed.
    pub errors: usize,
    /// Prompt tokens of the successful requests over the run's span.
    pub input_tokens_per_s: f64,
    /// Output tokens of the successful requests over the run's span.
    pub output_tokens_per_s: f64,
    /// Both together.
    pub total_tokens_per_s: f64,
    /// Time to first token, ms.
    pub ttft_ms: Distribution,
    /// Inter-token latency, ms; one value a request, the mean of its gaps.
    pub itl_ms: Distribution,
    /// 1 / p90(ITL), tokens a second.
    pub p90_interactivity: f64,
    /// 1 / p90(ITL + TTFT / output tokens), tokens a second.
    pub p90_e2e_normalized_interactivity: f64,
    /// Cached prompt tokens over all prompt tokens, 0 to 1.
    pub prefix_hit_ratio: f64,
    /// Prompt tokens that no cache had.
    pub prefill_tokens_computed: u64,
    /// Mean number of targets that siblings ran on, so hold their common
    /// prefix; 1 is the least. 0 if no session has a sibling.
    pub full_prefix_copies: f64,
    /// Requests of the busiest target over the mean of all targets; 1 is even.
    pub load_skew: f64,
    /// How often the policy gave each reason.
    pub reasons: BTreeMap<String, usize>,
}

/// The runs of a comparison, in the order they were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reports {
    /// One a policy.
    pub runs: Vec<Run>,
}

impl Run {
    /// Sums up the records of one run over `targets` ("endpoint/rank"), which
    /// names every target of the fleet, also those that got nothing.
    pub fn summarize(policy: impl Into<String>, records: &[Record], targets: &[String]) -> Self {
        let ok: Vec<&Record> = records.iter().filter(|r| r.error.is_none()).collect();
        let prompt: u64 = ok.iter().map(|r| r.prompt_tokens).sum();
        let cached: u64 = ok.iter().map(|r| r.cached_tokens).sum();
        let output: u64 = ok.iter().map(|r| r.output_tokens).sum();
        let span = span(records).as_secs_f64();
        let itl = Distribution::of(ok.iter().filter_map(|r| r.itl_s()).collect());
        let normalized = Distribution::of(ok.iter().filter_map(|r| normalized_itl_s(r)).collect());
        let mut reasons = BTreeMap::new();
        for reason in records.iter().filter_map(|r| r.reason.as_ref()) {
            *reasons.entry(reason.clone()).or_default() += 1;
        }
        Self {
            policy: policy.into(),
            requests: records.len(),
            errors: records.len() - ok.len(),
            input_tokens_per_s: ratio(prompt as f64, span),
            output_tokens_per_s: ratio(output as f64, span),
            total_tokens_per_s: ratio((prompt + output) as f64, span),
            ttft_ms: Distribution::of(
                ok.iter()
                    .filter_map(|r| r.ttft_s())
                    .map(|s| s * 1e3)
                    .collect(),
            ),
            itl_ms: itl.scaled(1e3),
            p90_interactivity: ratio(1.0, itl.p90),
            p90_e2e_normalized_interactivity: ratio(1.0, normalized.p90),
            prefix_hit_ratio: ratio(cached as f64, prompt as f64),
            prefill_tokens_computed: prompt.saturating_sub(cached),
            full_prefix_copies: full_prefix_copies(&ok),
            load_skew: load_skew(records, targets),
            reasons,
        }
    }
}

impl Reports {
    /// The JSON of `--json`: `{"runs": [...]}`.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// The table for the terminal: a row a run.
    pub fn table(&self) -> String {
        table::render(&self.runs)
    }
}

/// From the first request's start to the last one's end.
fn span(records: &[Record]) -> Duration {
    let first = records.iter().map(|r| r.start).min().unwrap_or_default();
    let last = records.iter().map(|r| r.end).max().unwrap_or_default();
    last.saturating_sub(first)
}

fn normalized_itl_s(record: &Record) -> Option<f64> {
    Some(record.itl_s()? + ratio(record.ttft_s()?, record.output_tokens as f64))
}

fn full_prefix_copies(records: &[&Record]) -> f64 {
    let mut groups: HashMap<&str, (HashSet<&str>, HashSet<&str>)> = HashMap::new();
    for record in records {
        if let (Some(parent), Some(target)) = (&record.parent, &record.target) {
            let (children, targets) = groups.entry(parent).or_default();
            children.insert(&record.session);
            targets.insert(target);
        }
    }
    let copies: Vec<f64> = groups
        .values()
        .filter(|(children, _)| children.len() > 1)
        .map(|(_, targets)| targets.len() as f64)
        .collect();
    Distribution::of(copies).mean
}

fn load_skew(records: &[Record], targets: &[String]) -> f64 {
    let mut load: HashMap<&str, usize> = targets.iter().map(|t| (t.as_str(), 0)).collect();
    for target in records.iter().filter_map(|r| r.target.as_deref()) {
        *load.entry(target).or_default() += 1;
    }
    let busiest = load.values().copied().max().unwrap_or_default();
    let all: usize = load.values().sum();
    ratio((busiest * load.len()) as f64, all as f64)
}

/// 0 where there is nothing to divide by.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn record(session: &str, target: &str, reason: &str) -> Record {
        Record {
            session: session.into(),
            parent: session.split_once('/').map(|(parent, _)| parent.into()),
            start: ms(100),
            first_output: Some(ms(150)),
            last_output: Some(ms(190)),
            end: ms(200),
            status: Some(200),
            target: Some(target.into()),
            reason: Some(reason.into()),
            prompt_tokens: 1000,
            cached_tokens: 250,
            output_tokens: 5,
            ..Record::default()
        }
    }

    fn targets() -> Vec<String> {
        ["a/0", "a/1", "b/0", "b/1"].map(String::from).to_vec()
    }

    #[test]
    fn the_summary_counts_what_the_records_say() {
        let mut failed = record("r", "a/1", "owner");
        failed.error = Some("503".into());
        failed.end = ms(600);
        let records = [
            record("r", "a/0", "placed"),
            record("r/a", "a/0", "placed"),
            record("r/b", "b/0", "siblings"),
            failed,
        ];
        let run = Run::summarize("p", &records, &targets());
        assert_eq!((run.requests, run.errors), (4, 1));
        assert_eq!(run.input_tokens_per_s, 6000.0);
        assert_eq!(run.output_tokens_per_s, 30.0);
        assert_eq!(run.total_tokens_per_s, 6030.0);
        assert_eq!((run.ttft_ms.p50, run.ttft_ms.p99), (50.0, 50.0));
        assert!((run.itl_ms.p90 - 10.0).abs() < 1e-9);
        assert!((run.p90_interactivity - 100.0).abs() < 1e-6);
        assert!((run.p90_e2e_normalized_interactivity - 50.0).abs() < 1e-6);
        assert_eq!(run.prefix_hit_ratio, 0.25);
        assert_eq!(run.prefill_tokens_computed, 2250);
        assert_eq!(run.full_prefix_copies, 2.0);
        assert_eq!(run.load_skew, 2.0);
        let reasons: Vec<_> = run.reasons.into_iter().collect();
        assert_eq!(
            reasons,
            [
                ("owner".into(), 1),
                ("placed".into(), 2),
                ("siblings".into(), 1)
            ]
        );
    }

    #[test]
    fn a_run_without_records_is_all_zero() {
        let run = Run::summarize("p", &[], &targets());
        assert_eq!((run.requests, run.errors, run.load_skew), (0, 0, 0.0));
        assert_eq!(run.p90_interactivity, 0.0);
        assert_eq!(run.ttft_ms, Distribution::default());
    }

    #[test]
    fn the_json_has_the_fields_of_the_design_and_no_others() {
        let reports = Reports {
            runs: vec![Run::summarize(
                "p",
                &[record("r", "a/0", "placed")],
                &targets(),
            )],
        };
        let value: serde_json::Value = serde_json::from_str(&reports.to_json().unwrap()).unwrap();
        let run = value["runs"][0].as_object().unwrap();
        let fields: Vec<_> = run.keys().map(String::as_str).collect();
        let wanted = "policy requests errors input_tokens_per_s output_tokens_per_s total_tokens_per_s ttft_ms itl_ms \
            p90_interactivity p90_e2e_normalized_interactivity prefix_hit_ratio prefill_tokens_computed \
            full_prefix_copies load_skew reasons";
        assert_eq!(fields, wanted.split_whitespace().collect::<Vec<_>>());
        let spread: Vec<_> = run["ttft_ms"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(spread, ["mean", "p50", "p90", "p99"]);
    }

    #[test]
    fn the_table_has_a_row_a_run_with_its_reasons() {
        let runs = ["session-affinity", "round-robin"]
            .map(|p| Run::summarize(p, &[record("r", "a/0", "placed")], &targets()))
            .to_vec();
        let table = Reports { runs }.table();
        for word in [
            "session-affinity",
            "round-robin",
            "placed 1",
            "750",
            "0.250",
            "TTFT p90",
        ] {
            assert!(table.contains(word), "{word} is not in\n{table}");
        }
    }
}
