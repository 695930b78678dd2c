//! Futures that run at the same time on one task and may borrow, unlike those of tokio's `JoinSet`.

use std::pin::Pin;
use std::task::Poll;

/// The futures that have not ended.
pub(super) struct FutureSet<'a, T>(Vec<Pin<Box<dyn Future<Output = T> + Send + 'a>>>);

impl<'a, T> FutureSet<'a, T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn push(&mut self, future: impl Future<Output = T> + Send + 'a) {
        self.0.push(Box::pin(future));
    }

    /// The result of the next future that ends; `None` if there is none left.
    pub(super) async fn next(&mut self) -> Option<T> {
        std::future::poll_fn(|context| {
            for (index, future) in self.0.iter_mut().enumerate() {
                if let Poll::Ready(result) = future.as_mut().poll(context) {
                    drop(self.0.swap_remove(index));
                    return Poll::Ready(Some(result));
                }
            }
            if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}
