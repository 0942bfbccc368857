//! Statistics of noisy measurements: medians, and ratios with confidence intervals.

use std::fmt;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const RESAMPLES: usize = 2000;

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Returns a quantile, interpolated between the two nearest values.
pub(crate) fn quantile(values: &[f64], quantile: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = quantile * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    below + (above - below) * position.fract()
}

/// A ratio with its 95 % confidence interval.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratio {
    pub(crate) value: f64,
    low: f64,
    high: f64,
}

impl Ratio {
    /// Returns the ratio of two medians. Values at the same position were measured directly after each other, so other
    /// load on the machine affected both. The interval comes from ratios of random samples of the rounds (bootstrap).
    pub(crate) fn of_medians(measured: &[f64], against: &[f64]) -> Self {
        assert_eq!(measured.len(), against.len(), "each round measures both");
        let of_rounds = |rounds: &[usize]| {
            let pick = |values: &[f64]| median(&rounds.iter().map(|&round| values[round]).collect::<Vec<_>>());
            pick(measured) / pick(against)
        };
        let rounds = measured.len();
        // A fixed seed: the same numbers give the same interval.
        let mut random = StdRng::seed_from_u64(1);
        let resampled: Vec<_> = (0..RESAMPLES)
            .map(|_| of_rounds(&(0..rounds).map(|_| random.random_range(0..rounds)).collect::<Vec<_>>()))
            .collect();
        Self {
            value: median(measured) / median(against),
            low: quantile(&resampled, 0.025),
            high: quantile(&resampled, 0.975),
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}× ({:.2}–{:.2})", self.value, self.low, self.high)
    }
}
