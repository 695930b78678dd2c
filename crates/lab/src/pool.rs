//! Independent work on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use profiler_base::error::Failure;

/// Does `work` on each item, on up to so many threads; returns the results in the order of the items, and the first failure, after
/// which no further item is started.
pub(super) fn parallel<I: Sync, T: Send>(
    items: &[I],
    threads: u32,
    work: impl Fn(&I) -> Result<T, Failure> + Sync,
) -> (Vec<T>, Option<Failure>) {
    let next = AtomicUsize::new(0);
    let done = Mutex::new((Vec::new(), None));
    let worker = || {
        while let Some((number, item)) = {
            let number = next.fetch_add(1, Ordering::Relaxed);
            items.get(number).map(|item| (number, item))
        } {
            let result = work(item);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(result) => done.0.push((number, result)),
                Err(failure) => {
                    next.store(items.len(), Ordering::Relaxed);
                    done.1.get_or_insert(failure);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..(threads.max(1) as usize).min(items.len()) {
            scope.spawn(worker);
        }
    });
    let (mut results, failure) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    (results.into_iter().map(|(_, result)| result).collect(), failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_base::error::exit;

    #[test]
    fn results_come_in_order_and_a_failure_ends_the_rest() {
        let items: Vec<u32> = (0..50).collect();
        let (doubled, failure) = parallel(&items, 4, |item| Ok(item * 2));
        assert_eq!((doubled.len(), doubled[7], failure.is_none()), (50, 14, true));
        let begun = AtomicUsize::new(0);
        let (kept, failure) = parallel(&items, 1, |item| {
            begun.fetch_add(1, Ordering::Relaxed);
            match item {
                3 => Err(Failure::new(exit::LAB_FAILED, "three")),
                item => Ok(*item),
            }
        });
        assert_eq!((kept, failure.unwrap().message.as_str()), (vec![0, 1, 2], "three"));
        assert_eq!(begun.into_inner(), 4);
        assert!(parallel(&[] as &[u32], 4, |item| Ok(*item)).0.is_empty());
    }
}
