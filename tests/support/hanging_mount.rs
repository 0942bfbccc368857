//! A file system that never answers: a FUSE mount whose requests are never read.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

pub(crate) struct HangingMount {
    at: PathBuf,
    /// Every waiting call gets an error once this is closed.
    device: Option<File>,
}

impl HangingMount {
    /// Mounts over an existing directory.
    pub(crate) fn over(at: &Path) -> Self {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("a kernel with FUSE");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = CString::new(options).expect("no zero byte");
        mount("hanging", at, "fuse", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str()).expect("mounted");
        Self { at: at.to_owned(), device: Some(device) }
    }
}

impl Drop for HangingMount {
    fn drop(&mut self) {
        self.device = None;
        unmount(&self.at, UnmountFlags::DETACH).expect("unmounted");
    }
}
