//! Independent work on several threads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use profiler_base::error::Failure;

/// Does `work` on each item, on up to so many threads; returns the results in the order of the items, and the first failure. After
/// one no further item is started.
pub(super) fn parallel<'i, I: Sync, T: Send + Sync>(
    items: &'i [I],
    threads: u32,
    work: impl Fn(&'i I) -> Result<T, Failure> + Sync,
) -> (Vec<T>, Option<Failure>) {
    let steps: Vec<(&'i I, OnceLock<Result<T, Failure>>)> =
        items.iter().map(|item| (item, OnceLock::new())).collect();
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some((item, done)) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
            if done.get_or_init(|| work(item)).is_err() {
                next.store(steps.len(), Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..(threads.max(1) as usize).min(items.len()) {
            scope.spawn(worker);
        }
    });
    let done = steps.into_iter().filter_map(|(_, done)| done.into_inner());
    let (results, failed): (Vec<_>, Vec<_>) = done.partition(Result::is_ok);
    (results.into_iter().flatten().collect(), failed.into_iter().find_map(Result::err))
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
