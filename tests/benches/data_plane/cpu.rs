//! The kernel's own account of a process.

use anyhow::{Context, Result};

/// CPU time of all its threads and of its children's, as the scheduler counts it.
pub fn ns_of(pid: u32) -> Result<u64> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let pids = (children.split_whitespace()).filter_map(|child| child.parse().ok());
    let mut sum = 0;
    for pid in std::iter::once(pid).chain(pids) {
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let stat = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let ns: u64 = stat.split(' ').next().context("schedstat")?.parse()?;
            sum += ns;
        }
    }
    Ok(sum)
}

/// The name of this machine's.
pub fn name() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = (info.lines()).find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map(|(_, name)| name.to_owned())
}

/// Least, median, most.
pub fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |n: usize| sorted.get(n).copied().unwrap_or(0.0);
    (
        at(0),
        at(sorted.len() / 2),
        at(sorted.len().saturating_sub(1)),
    )
}
