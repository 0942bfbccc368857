//! Memory of this process: heap and resident.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, as the service uses it, with a count of the allocated bytes.
pub(crate) struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "the trait is unsafe; every call is passed on as it came")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let in_use = IN_USE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(in_use, Ordering::Relaxed);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) heap: f64,
    pub(crate) resident: f64,
}

impl Memory {
    pub(crate) fn now() -> std::io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        let kilobytes: f64 = resident.and_then(|number| number.parse().ok()).unwrap_or(f64::NAN);
        Ok(Self { heap: IN_USE.load(Ordering::Relaxed) as f64, resident: kilobytes * 1024.0 })
    }

    /// Returns the heap and resident bytes that each of `count` items has added.
    pub(crate) fn each_since(self, before: Self, count: usize) -> (f64, f64) {
        ((self.heap - before.heap) / count as f64, (self.resident - before.resident) / count as f64)
    }

    /// Returns the peak heap size since the last call.
    pub(crate) fn take_most_heap() -> f64 {
        MOST.swap(IN_USE.load(Ordering::Relaxed), Ordering::Relaxed) as f64
    }
}
