//! A page of Prometheus text, read.

use std::collections::BTreeMap;

/// Series by name with labels, as on the page.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Reads a page; lines that are no samples are passed over.
    pub fn parse(page: &str) -> Metrics {
        let sample = |line: &str| -> Option<(String, f64)> {
            let (name, value) = line.rsplit_once(' ')?;
            (!name.starts_with('#')).then_some((name.to_owned(), value.parse().ok()?))
        };
        Metrics(page.lines().filter_map(sample).collect())
    }

    /// The sum of all series of a metric whose labels contain each of `labels` (`key="value"`).
    pub fn sum(&self, metric: &str, labels: &[&str]) -> f64 {
        (self.0.iter())
            .filter(|(name, _)| name.split('{').next() == Some(metric))
            .filter(|(name, _)| labels.iter().all(|label| name.contains(label)))
            .fold(0.0, |sum, (_, value)| sum + value)
    }

    /// Whether there is a series whose name with labels contains `text`.
    pub fn has(&self, text: &str) -> bool {
        self.0.keys().any(|name| name.contains(text))
    }

    /// What is outstanding anywhere: requests and prefill tokens.
    pub fn outstanding(&self) -> f64 {
        self.sum("pointsman_target_requests", &[])
            + self.sum("pointsman_target_prefill_tokens", &[])
    }
}
