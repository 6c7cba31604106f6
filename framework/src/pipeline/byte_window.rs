//! How many deliveries a handler of batches holds, so that large ones do not fill the memory: about
//! as many as have a given number of bytes.
//!
//! The broker counts deliveries and not bytes, so the window follows the sizes that were seen
//! lately. It is small at the beginning and after a rest, when nothing is known.
//!
//! Pure: it does no I/O and reads no clock.
//!
//! What must stay true:
//! - Large deliveries make the window small at once. Small ones make it large step by step:
//!   fourfold at most, and only when a whole window of them was seen.
//! - Every change costs the broker something. A window that fits by half or more stays.

/// How many deliveries are held while their sizes are unknown.
const FIRST: u32 = 64;
/// How many are held however large they are, so that the next one is there when a batch is done.
const SMALLEST: u32 = 4;
const GROWTH: u32 = 4;

/// The window of one handler.
#[derive(Debug)]
pub(crate) struct ByteWindow {
    bytes: u64,
    largest: u32,
    size: u32,
    /// The bytes of a delivery. Rises at once and falls slowly.
    usual: u64,
    /// How many deliveries were seen since the last change.
    seen: u32,
}

impl ByteWindow {
    /// Returns the window of a handler that holds about this many bytes, and never more deliveries
    /// than `largest`.
    pub fn new(bytes: usize, largest: u32) -> Self {
        Self {
            bytes: bytes as u64,
            largest: largest.max(1),
            size: FIRST.min(largest.max(1)),
            usual: 0,
            seen: 0,
        }
    }

    /// Returns how many deliveries the handler may hold.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Takes note of a batch of this many bytes. Returns the new size if it demands another one.
    pub fn adapt(&mut self, deliveries: u32, bytes: u64) -> Option<u32> {
        let mean = bytes / u64::from(deliveries.max(1));
        self.usual = mean.max(self.usual / 4 * 3 + mean / 4).max(1);
        self.seen = self.seen.saturating_add(deliveries);
        let wanted = u32::try_from(self.bytes / self.usual).unwrap_or(u32::MAX);
        let wanted = wanted.max(SMALLEST).min(self.largest);
        let grows =
            wanted >= self.size.saturating_add(self.size.div_ceil(2)) && self.seen >= self.size;
        if wanted <= self.size / 2 || grows {
            return self.resize(wanted.min(self.size.saturating_mul(GROWTH)));
        }
        None
    }

    /// Returns the new size after a time without deliveries. Nothing is known about the next ones.
    pub fn rest(&mut self) -> Option<u32> {
        self.usual = 0;
        self.resize(FIRST.min(self.largest))
    }

    fn resize(&mut self, size: u32) -> Option<u32> {
        self.seen = 0;
        let is_new = size != self.size;
        self.size = size;
        is_new.then_some(size)
    }
}

/// Returns how many of the first deliveries of these sizes are a batch: as many as fit into both
/// limits, and at least one.
pub(crate) fn batch_size(
    sizes: impl Iterator<Item = usize>,
    max_batch: usize,
    max_bytes: usize,
) -> usize {
    let mut bytes = 0_usize;
    let fitting = sizes.take(max_batch).take_while(|size| {
        bytes = bytes.saturating_add(*size);
        bytes <= max_bytes
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn batch_ends_at_the_limit_of_deliveries_or_of_bytes_and_has_one_at_least() {
        for (sizes, expected) in [
            (&[1, 1, 1, 1][..], 3),
            (&[4, 6, 1], 2),
            (&[4, 7, 1], 1),
            (&[11, 1], 1),
            (&[usize::MAX, 1], 1),
        ] {
            assert_eq!(batch_size(sizes.iter().copied(), 3, 10), expected);
        }
    }

    #[test]
    fn window_grows_by_small_deliveries_step_by_step_and_shrinks_by_large_ones_at_once() {
        let mut window = ByteWindow::new(32 << 20, 1000);
        assert_eq!(window.size(), 64);
        assert_eq!(window.adapt(63, 63 << 10), None);
        assert_eq!(window.adapt(1, 1 << 10), Some(256));
        assert_eq!(window.adapt(256, 256 << 10), Some(1000));
        assert_eq!(window.adapt(1, 1 << 20), Some(32));
        // What was large may come again.
        assert_eq!(window.adapt(20, 20 << 10), None);
        assert_eq!(window.adapt(1, 1 << 30), Some(SMALLEST));
        assert_eq!((window.rest(), window.rest()), (Some(64), None));
    }

    proptest! {
        #[test]
        fn window_stays_within_its_limits(
            bytes in any::<usize>(),
            largest in any::<u32>(),
            batches in prop::collection::vec((any::<u32>(), any::<u64>()), 0..100),
        ) {
            let mut window = ByteWindow::new(bytes, largest);
            for (deliveries, bytes) in batches {
                let before = window.size();
                let adapted = window.adapt(deliveries, bytes);
                prop_assert_eq!(adapted.is_some(), window.size() != before);
                prop_assert!((1..=largest.max(1)).contains(&window.size()));
                prop_assert!(window.size() <= before.saturating_mul(GROWTH));
            }
        }
    }
}
