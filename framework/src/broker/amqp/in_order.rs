//! Awaits many futures that end in the order in which they begin.

use std::pin::Pin;

use futures_util::future::{FutureExt as _, maybe_done};

/// Begins all futures at once, in this order, and returns their outputs in it.
///
/// They may end in any order. But the task is woken once if the last one is the last to end, and
/// not for each of them.
pub async fn in_order<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut begun: Vec<_> = futures.map(|future| maybe_done(Box::pin(future))).collect();
    for future in &mut begun {
        // Polled without the task's waker.
        let _ = future.now_or_never();
    }
    if let Some(last) = begun.last_mut() {
        last.await;
    }
    let mut outputs = Vec::with_capacity(begun.len());
    for mut future in begun {
        (&mut future).await;
        outputs.extend(Pin::new(&mut future).take_output());
    }
    outputs
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake};

    use proptest::prelude::*;
    use tokio::sync::oneshot;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn task_is_woken_once_for_all() {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..3).map(|_| oneshot::channel::<u32>()).unzip();
        let counted = Arc::new(Wakes::default());
        let waker = Arc::clone(&counted).into();
        let mut context = Context::from_waker(&waker);
        let mut all = Box::pin(in_order(receivers.into_iter()));
        assert_eq!(all.as_mut().poll(&mut context), Poll::Pending);
        for (number, sender) in (0..).zip(senders) {
            assert_eq!(counted.0.load(Ordering::Relaxed), 0);
            sender.send(number).unwrap();
        }
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);
        let outputs = Poll::Ready(vec![Ok(0), Ok(1), Ok(2)]);
        assert_eq!(all.as_mut().poll(&mut context), outputs);
    }

    proptest! {
        #[test]
        fn outputs_are_complete_whatever_ends_first(order in Just((0..20_usize).collect::<Vec<_>>()).prop_shuffle(), few in 0..20_usize) {
            let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..few)
                .map(|_| oneshot::channel())
                .map(|(sender, receiver)| (Some(sender), receiver))
                .unzip();
            let mut all = Box::pin(in_order(receivers.into_iter()));
            for number in order.into_iter().filter(|number| *number < few) {
                prop_assert_eq!(all.as_mut().now_or_never(), None);
                senders[number].take().unwrap().send(number).unwrap();
            }
            let expected: Vec<_> = (0..few).map(Ok).collect();
            prop_assert_eq!(all.as_mut().now_or_never(), Some(expected));
        }
    }
}
