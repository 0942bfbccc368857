//! Numbers from a noisy machine: medians, and ratios with the uncertainty that they have.

use std::fmt;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const RESAMPLES: usize = 2000;

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Interpolates between the two values nearest to it.
pub(crate) fn quantile(values: &[f64], quantile: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = quantile * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    below + (above - below) * position.fract()
}

/// How many times as much, with the interval that holds the true ratio in 95 of 100 runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratio {
    pub(crate) value: f64,
    low: f64,
    high: f64,
}

impl Ratio {
    /// Of two medians. The values at the same position were measured one right after the other, so whatever else the
    /// machine did at the time has hit both. The interval is that of the ratios found in random samples of the rounds
    /// (bootstrap).
    pub(crate) fn of_medians(measured: &[f64], against: &[f64]) -> Self {
        assert_eq!(measured.len(), against.len(), "each round measures both");
        let of_rounds = |rounds: &[usize]| {
            let pick = |values: &[f64]| median(&rounds.iter().map(|&round| values[round]).collect::<Vec<_>>());
            pick(measured) / pick(against)
        };
        let rounds = measured.len();
        // The same numbers give the same interval.
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
