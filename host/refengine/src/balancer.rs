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

    /// A place on this rank. `None`: no such rank.
    pub(crate) fn take(&self, rank: usize) -> Option<Seat> {
        *self.lock().get_mut(rank)? += 1;
        Some(Seat {
            rank,
            balancer: self.clone(),
        })
    }

    /// A place on the rank with the least requests in flight of those that are alive (of several, the
    /// lowest). `None`: none is alive.
    pub(crate) fn take_least(&self, is_alive: impl Fn(usize) -> bool) -> Option<Seat> {
        let least = (0..)
            .zip(self.lock().iter())
            .filter(|(rank, _)| is_alive(*rank))
            .min_by_key(|(_, n)| **n)
            .map(|(rank, _)| rank);
        self.take(least?)
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
    fn a_named_rank_is_taken_and_otherwise_the_least_busy_and_then_the_lowest_that_is_alive() {
        let balancer = Balancer::new(3);
        let _one = balancer.take(1).unwrap();
        let zero = balancer.take_least(|_| true).unwrap();
        let two = balancer.take_least(|_| true).unwrap();
        assert_eq!((zero.rank(), two.rank()), (0, 2));
        drop(two);
        assert_eq!(balancer.take_least(|_| true).unwrap().rank(), 2);
        assert_eq!(balancer.take_least(|rank| rank == 1).unwrap().rank(), 1);
        assert!(balancer.take(3).is_none());
        assert!(balancer.take_least(|_| false).is_none());
    }
}
