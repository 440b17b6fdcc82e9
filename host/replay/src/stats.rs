//! Percentiles, in one place.

use serde::Serialize;

/// A sample in four numbers, in the unit of the sample. All zero when the
/// sample is empty: JSON has no word for "no number" that readers expect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Distribution {
    /// Of finite values in any order.
    pub fn of(mut sample: Vec<f64>) -> Self {
        if sample.is_empty() {
            return Self::default();
        }
        sample.sort_unstable_by(f64::total_cmp);
        Self {
            mean: sample.iter().sum::<f64>() / sample.len() as f64,
            p50: percentile(&sample, 0.50),
            p90: percentile(&sample, 0.90),
            p99: percentile(&sample, 0.99),
        }
    }

    /// The same sample in another unit.
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            mean: self.mean * factor,
            p50: self.p50 * factor,
            p90: self.p90 * factor,
            p99: self.p99 * factor,
        }
    }
}

/// The `q`-quantile (0 to 1) of ascending values, with linear interpolation
/// between neighbours (numpy's default, which the published figures use).
/// 0 of an empty sample.
pub fn percentile(ascending: &[f64], q: f64) -> f64 {
    let Some(last) = ascending.len().checked_sub(1) else {
        return 0.0;
    };
    let place = q.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let at = |n: usize| ascending.get(n.min(last)).copied().unwrap_or_default();
    at(below) + (at(below + 1) - at(below)) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate_linearly() {
        let sample = [10.0, 20.0, 30.0, 40.0, 50.0];
        for (q, wanted) in [
            (0.0, 10.0),
            (0.5, 30.0),
            (0.9, 46.0),
            (0.99, 49.6),
            (1.0, 50.0),
            (7.0, 50.0),
        ] {
            assert!((percentile(&sample, q) - wanted).abs() < 1e-9, "{q}");
        }
        assert_eq!(percentile(&[], 0.5), 0.0);
        assert_eq!(percentile(&[3.0], 0.9), 3.0);
    }

    #[test]
    fn a_distribution_takes_values_in_any_order() {
        let d = Distribution::of(vec![30.0, 10.0, 20.0]);
        assert_eq!((d.mean, d.p50, d.p90), (20.0, 20.0, 28.0));
        assert_eq!(Distribution::of(Vec::new()), Distribution::default());
    }
}
