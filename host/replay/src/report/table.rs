//! The runs as a table for the terminal.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, Table};

use super::Run;

const HEADER: [&str; 9] = [
    "policy",
    "requests",
    "errors",
    "prefix hits",
    "prefill tokens computed",
    "TTFT p50 ms",
    "TTFT p90 ms",
    "load skew",
    "reasons",
];

pub(super) fn render(runs: &[Run]) -> String {
    let mut table = Table::new();
    table
        .load_preset(ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(HEADER);
    for run in runs {
        table.add_row(cells(run));
    }
    let last = HEADER.len() - 1;
    for (n, column) in table.column_iter_mut().enumerate() {
        if n != 0 && n != last {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

fn cells(run: &Run) -> [String; 9] {
    let mut reasons: Vec<_> = run.reasons.iter().collect();
    reasons.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let reasons: Vec<_> = reasons
        .iter()
        .map(|(word, n)| format!("{word} {n}"))
        .collect();
    [
        run.policy.clone(),
        run.requests.to_string(),
        run.errors.to_string(),
        format!("{:.3}", run.prefix_hit_ratio),
        grouped(run.prefill_tokens_computed),
        format!("{:.1}", run.ttft_ms.p50),
        format!("{:.1}", run.ttft_ms.p90),
        format!("{:.2}", run.load_skew),
        reasons.join(", "),
    ]
}

/// 1234567 → 1,234,567.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        for (n, wanted) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(n), wanted);
        }
    }
}
