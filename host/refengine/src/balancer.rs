//! Which rank takes a request that names none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Requests in flight for each rank: from the moment the request is accepted until its response
/// is over or given up.
#[derive(Debug, Clone)]
pub(crate) struct Balancer {
    outstanding: Arc<Mutex<Vec<usize>>>,
}

/// One request's place on a rank; gives it back when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    rank: usize,
    balancer: Balancer,
}

impl Balancer {
    pub(crate) fn new(ranks: usize) -> Self {
        Self {
            outstanding: Arc::new(Mutex::new(vec![0; ranks])),
        }
    }

    /// A place on `wanted`, or else on the rank with the least requests in flight (of several, the
    /// lowest). `None`: no such rank.
    pub(crate) fn take(&self, wanted: Option<usize>) -> Option<Seat> {
        let mut outstanding = self.lock();
        let least = || {
            (0..)
                .zip(outstanding.iter())
                .min_by_key(|(_, n)| **n)
                .map(|(rank, _)| rank)
        };
        let rank = wanted.or_else(least)?;
        *outstanding.get_mut(rank)? += 1;
        Some(Seat {
            rank,
            balancer: self.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        self.outstanding
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(n) = self.balancer.lock().get_mut(self.rank) {
            *n -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_rank_is_taken_and_otherwise_the_least_busy_and_then_the_lowest() {
        let balancer = Balancer::new(3);
        let _one = balancer.take(Some(1)).unwrap();
        let zero = balancer.take(None).unwrap();
        let two = balancer.take(None).unwrap();
        assert_eq!((zero.rank(), two.rank()), (0, 2));
        drop(two);
        assert_eq!(balancer.take(None).unwrap().rank(), 2);
        assert!(balancer.take(Some(3)).is_none());
    }
}
