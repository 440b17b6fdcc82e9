//! What became of a mixed load, and several of them in one table.

use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use pointsman_refengine::delayer::{Cause, Counts};
use pointsman_refengine::lockstep::Tick;
use serde::Serialize;

use super::Arrival;
use crate::stats::Distribution;

/// The figures of one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mixed {
    /// what was set
    pub setting: String,
    /// all of them ended
    pub requests: usize,
    /// from the first moment to the last token
    pub seconds: f64,
    /// prompt tokens over that span
    pub input_tokens_per_s: f64,
    /// output tokens over that span
    pub output_tokens_per_s: f64,
    /// from arrival to the first token
    pub ttft_ms: Distribution,
    /// every gap between two tokens of a request, each by itself: a stream that stops shows
    pub itl_ms: Distribution,
    /// of all ranks together
    pub ticks: u64,
    /// those in which a rank prefilled
    pub prefill_ticks: u64,
    /// the decisions, by `fire_…` and `hold_…`; none without a delayer
    pub decisions: Counts,
    /// the settings as the policy left them, where one drove them
    pub at_last: Option<String>,
}

/// Several settings under the same load.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MixedReports {
    /// in the order they were made
    pub runs: Vec<Mixed>,
}

/// Fills in one [`Mixed`].
#[derive(Default)]
pub(super) struct Recorder {
    requests: usize,
    input: usize,
    ttft: Vec<f64>,
    itl: Vec<f64>,
    ticks: u64,
    prefill_ticks: u64,
}

impl Recorder {
    pub(super) fn arrived(&mut self, arrival: &Arrival) {
        self.requests += 1;
        self.input += arrival.prompt_tokens;
    }

    pub(super) fn ticked(&mut self, tick: &Tick) {
        self.ticks += 1;
        let mut steps = tick.steps.iter().flatten();
        self.prefill_ticks += u64::from(steps.any(|step| step.prefill_tokens > 0));
    }

    pub(super) fn first(&mut self, after: Duration) {
        self.ttft.push(after.as_secs_f64() * 1e3);
    }

    pub(super) fn next(&mut self, after: Duration) {
        self.itl.push(after.as_secs_f64() * 1e3);
    }

    pub(super) fn finish(self, end: Duration, decisions: &Counts) -> Mixed {
        let seconds = end.as_secs_f64();
        let rate = |tokens: usize| {
            if seconds > 0.0 {
                tokens as f64 / seconds
            } else {
                0.0
            }
        };
        Mixed {
            setting: String::new(),
            requests: self.requests,
            seconds,
            input_tokens_per_s: rate(self.input),
            output_tokens_per_s: rate(self.ttft.len() + self.itl.len()),
            ttft_ms: Distribution::of(self.ttft),
            itl_ms: Distribution::of(self.itl),
            ticks: self.ticks,
            prefill_ticks: self.prefill_ticks,
            decisions: *decisions,
            at_last: None,
        }
    }
}

/// A figure of the table, in ms.
type Figure = (&'static str, &'static str, fn(&Mixed) -> f64);

const FIGURES: [Figure; 8] = [
    ("TTFT", "mean", |run| run.ttft_ms.mean),
    ("TTFT", "p50", |run| run.ttft_ms.p50),
    ("TTFT", "p90", |run| run.ttft_ms.p90),
    ("TTFT", "p99", |run| run.ttft_ms.p99),
    ("ITL", "mean", |run| run.itl_ms.mean),
    ("ITL", "p50", |run| run.itl_ms.p50),
    ("ITL", "p90", |run| run.itl_ms.p90),
    ("ITL", "p99", |run| run.itl_ms.p99),
];

impl MixedReports {
    /// A column a setting: figures below each other, then the decisions that were made at all.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        let header = std::iter::once(String::new());
        table.set_header(header.chain(self.runs.iter().map(|run| run.setting.clone())));
        let mut row = |name: String, value: &dyn Fn(&Mixed) -> String| {
            table.add_row(std::iter::once(name).chain(self.runs.iter().map(value)));
        };
        for (name, part, of) in FIGURES {
            row(format!("{name} {part}, ms"), &|run| {
                format!("{:.1}", of(run))
            });
        }
        row("input tokens/s".into(), &|run| {
            format!("{:.0}", run.input_tokens_per_s)
        });
        row("output tokens/s".into(), &|run| {
            format!("{:.0}", run.output_tokens_per_s)
        });
        row("ticks".into(), &|run| run.ticks.to_string());
        row("with prefill".into(), &|run| run.prefill_ticks.to_string());
        for cause in Cause::ALL {
            if self.runs.iter().any(|run| run.decisions.of(cause) > 0) {
                let name = format!("{} {}", cause.decision(), cause.as_str());
                row(name, &|run| run.decisions.of(cause).to_string());
            }
        }
        if self.runs.iter().any(|run| run.at_last.is_some()) {
            row("at last".into(), &|run| {
                run.at_last.clone().unwrap_or_default()
            });
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.trim_fmt()
    }
}
