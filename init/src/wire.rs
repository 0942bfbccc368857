//! The messages of a guest link, and their frames.
//!
//! A frame is a kind (one byte), a length (four bytes), and a payload of that length. The service opens a guest stream
//! with one [`Request`], which determines the frames that may follow:
//!
//! | request | from the service | from init |
//! |---|---|---|
//! | `Run`, `Attach` | `Data` (standard input), `End` of it, `Control` | `Event::Started`, `Output`…, `Event::Ended` |
//! | `Read` | | `Event::Facts`, `Data`…, `End` |
//! | `Write` | `Data`…, `End` | `Event::Done` |
//! | `ReadDirectory` | | `Event::Entries`…, `End` |
//! | `ReadTree` | | `Data`… (an archive), `Event::Tree` |
//! | `WriteTree` | `Data`… (an archive), `End` | `Event::Tree` |
//! | `Commands` | | `Event::Commands` |
//! | `Usage` | | `Event::Usage` |
//! | `Await` | | `Event::Done`, once the command has ended |
//! | the others | | `Event::Done` or `Event::Facts` |
//!
//! Instead of any of its messages, init may send `Event::Failed`, which ends the stream. A `Run` goes on when the
//! service closes its stream; the service can attach to it again. A `Run` whose stream is closed before init has begun
//! with it is never started. A service that gives up waiting for `Event::Started` sends `Control::Kill` before it
//! closes the stream, because init may just have begun.

use crate::codec::{Bytes, Malformed, Value};
use crate::messages;

/// The version of the protocol, raised with every incompatible change.
pub const VERSION: u8 = 1;

/// The longest payload of a frame, in either direction.
pub const MAX_PAYLOAD: usize = 256 * 1024;

/// The length of a frame's header: kind and length.
pub const HEADER: usize = 5;

pub const SECRET_LENGTH: usize = 32;

/// The secret in hexadecimal. Init removes it, and [`SOCKET_VARIABLE`], from the environment of its children.
pub const SECRET_VARIABLE: &str = "SANDBOXD_INIT_SECRET";

/// The path of the service's socket in the sandbox.
pub const SOCKET_VARIABLE: &str = "SANDBOXD_INIT_SOCKET";

/// Set for an init that starts no program before it is bound; see [`Request::Bind`].
pub const WAIT_VARIABLE: &str = "SANDBOXD_INIT_WAIT";

/// Set in the environment of every command, and inherited by its processes: it finds those that left the process group.
pub const COMMAND_VARIABLE: &str = "SANDBOXD_COMMAND";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Hello = 1,
    Request = 2,
    /// Bytes of a file or of standard input.
    Data = 3,
    /// The end of the data.
    End = 4,
    Control = 5,
    Event = 6,
    /// Bytes of a command's standard output.
    Stdout = 7,
    Stderr = 8,
}

impl Kind {
    fn of(byte: u8) -> Result<Self, Malformed> {
        use Kind::*;
        [Hello, Request, Data, End, Control, Event, Stdout, Stderr]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
            .ok_or(Malformed)
    }
}

/// Decodes the header of a frame into its kind and length.
pub fn header(bytes: [u8; HEADER]) -> Result<(Kind, usize), Malformed> {
    let [kind, length @ ..] = bytes;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_PAYLOAD { Err(Malformed) } else { Ok((Kind::of(kind)?, length)) }
}

pub fn put_header(out: &mut [u8], kind: Kind, length: usize) {
    debug_assert!(length <= MAX_PAYLOAD);
    out[0] = kind as u8;
    out[1..HEADER].copy_from_slice(&(length as u32).to_le_bytes());
}

/// Appends a frame of raw bytes.
pub fn put_data(out: &mut Vec<u8>, kind: Kind, bytes: &[u8]) {
    let mut header = [0; HEADER];
    put_header(&mut header, kind, bytes.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(bytes);
}

/// Appends a frame with an encoded message.
pub fn put_message(out: &mut Vec<u8>, kind: Kind, message: &impl Value) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    message.put(out);
    let length = out.len() - start - HEADER;
    put_header(&mut out[start..], kind, length);
}

messages! {
    pub struct Hello {
        pub version: u8,
        pub secret: [u8; SECRET_LENGTH],
    }

    /// A command to run.
    pub struct Run {
        /// Chosen by the service; unique in a sandbox.
        pub id: u64,
        pub arguments: Vec<Bytes>,
        /// Added to the sandbox's own environment.
        pub environment: Vec<(Bytes, Bytes)>,
        /// The working directory; that of the sandbox if absent.
        pub directory: Option<Bytes>,
        /// In milliseconds. Then all processes of the command are killed.
        pub timeout: Option<u64>,
        pub terminal: Option<Size>,
        /// Whether standard input follows; otherwise it is empty.
        pub input: bool,
        /// The service does not wait for the end: it closes the stream once the command has started.
        pub detached: bool,
    }

    pub struct Size {
        pub rows: u16,
        pub columns: u16,
    }

    pub enum Request {
        Run { command: Run, } = 1,
        /// Streams a command's output, beginning with the output that was buffered while no caller was attached.
        Attach { id: u64, } = 2,
        Commands {} = 3,
        Signal { id: u64, signal: i32, } = 4,
        /// Kills all processes of the command.
        Kill { id: u64, } = 5,
        /// Reads a regular file from `offset`, at most `length` bytes.
        Read { path: Bytes, offset: u64, length: u64, } = 6,
        /// Replaces a file atomically once all data has arrived.
        Write { path: Bytes, mode: Option<u32>, parents: bool, } = 7,
        Facts { path: Bytes, } = 8,
        ReadDirectory { path: Bytes, } = 9,
        MakeDirectory { path: Bytes, mode: Option<u32>, parents: bool, } = 10,
        Remove { path: Bytes, recursive: bool, } = 11,
        Move { from: Bytes, to: Bytes, } = 12,
        MakeLink { path: Bytes, target: Bytes, } = 13,
        /// Returns the sandbox's use of resources.
        Usage {} = 14,
        /// Reads a directory tree as an archive; see [`crate::tree`].
        ReadTree { path: Bytes, } = 15,
        /// Unpacks an archive into a directory.
        WriteTree { path: Bytes, parents: bool, } = 16,
        /// Starts the program of an init that waits, and adds these variables to the sandbox's own environment for
        /// good.
        Bind { environment: Vec<(Bytes, Bytes)>, } = 17,
        /// Asks whether init waits to be bound; fails if it does not.
        Waiting {} = 18,
        /// Asks whether the directory at this path has this device and inode; fails if it has not.
        Mounted { path: Bytes, device: u64, inode: u64, } = 19,
        /// Answers when the command has ended.
        Await { id: u64, } = 21,
        /// Starts the program of an init that waits, with an unchanged environment. A program that cannot be started
        /// ends init, with the exit code of a shell.
        Begin {} = 20,
    }

    /// A message of the service to an attached command.
    pub enum Control {
        Signal { signal: i32, } = 1,
        Kill {} = 2,
        Resize { size: Size, } = 3,
    }

    pub enum Event {
        Started { id: u64, } = 1,
        Ended { ending: Ending, } = 2,
        Failed { failure: Failure, } = 3,
        Done {} = 4,
        Facts { facts: Facts, } = 5,
        Entries { entries: Vec<Entry>, } = 6,
        Commands { commands: Vec<CommandFacts>, } = 7,
        /// The bytes of output that were dropped while no caller was attached.
        Missed { bytes: u64, } = 8,
        Usage { usage: Usage, } = 9,
        /// The tree was read or written completely.
        Tree { entries: u64, bytes: u64, skipped: u64, } = 10,
    }

    /// The sandbox's use of resources. An unknown value is absent, and so is a limit that is not set.
    #[derive(Default)]
    pub struct Usage {
        /// The time of the measurement, in microseconds of a monotonic clock.
        pub at: u64,
        /// CPU time in microseconds, of all CPUs together.
        pub cpu: Option<u64>,
        /// In bytes, without caches that the kernel can reclaim.
        pub memory: Option<u64>,
        pub memory_limit: Option<u64>,
        /// Processes and threads.
        pub processes: Option<u64>,
        pub process_limit: Option<u64>,
        /// In bytes, on all interfaces except loopback.
        pub received: Option<u64>,
        pub sent: Option<u64>,
        /// In bytes, to disks.
        pub written: Option<u64>,
    }

    pub struct Ending {
        pub how: How,
        /// From start to end of the command, in microseconds.
        pub duration: u64,
        pub timed_out: bool,
        pub killed: bool,
    }

    pub enum How {
        Code { code: i32, } = 1,
        Signal { signal: i32, } = 2,
        /// Killed by the kernel with `SIGKILL`, because the sandbox's memory limit was reached.
        OutOfMemory {} = 3,
        /// Exited with this code, as a shell does after the kernel has killed its command because of the memory limit.
        CodeOutOfMemory { code: i32, } = 4,
    }

    pub struct Failure {
        /// As in `errno`, or 0 for an error that is not the system's.
        pub errno: i32,
        pub message: Bytes,
    }

    pub struct Facts {
        pub kind: FileKind,
        pub size: u64,
        pub mode: u32,
        pub user: u32,
        pub group: u32,
        /// Nanoseconds since 1970.
        pub modified: i64,
        /// The target of a symbolic link.
        pub target: Option<Bytes>,
    }

    pub enum FileKind {
        File {} = 1,
        Directory {} = 2,
        Link {} = 3,
        Other {} = 4,
    }

    pub struct Entry {
        pub name: Bytes,
        pub facts: Facts,
    }

    pub struct CommandFacts {
        pub id: u64,
        pub arguments: Vec<Bytes>,
        pub process: i32,
        /// The time since the start, in microseconds.
        pub age: u64,
        pub attached: bool,
        pub ending: Option<Ending>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::decode;

    fn round_trip<T: Value + PartialEq + std::fmt::Debug>(value: &T) {
        let mut bytes = Vec::new();
        value.put(&mut bytes);
        assert_eq!(&decode::<T>(&bytes).unwrap(), value);
        for end in 0..bytes.len() {
            assert!(decode::<T>(&bytes[..end]).is_err(), "{value:?} cut at {end}");
        }
        bytes.push(0);
        assert!(decode::<T>(&bytes).is_err(), "{value:?} with a byte too many");
    }

    #[test]
    fn a_message_is_read_back_and_a_part_of_one_is_refused() {
        round_trip(&Hello { version: VERSION, secret: [7; SECRET_LENGTH] });
        round_trip(&Request::Run {
            command: Run {
                id: 7,
                arguments: vec!["sh".into(), Bytes(vec![0xff])],
                environment: vec![("A".into(), "b".into())],
                directory: Some("/".into()),
                timeout: Some(1),
                terminal: Some(Size { rows: 24, columns: 80 }),
                input: true,
                detached: false,
            },
        });
        round_trip(&Control::Kill {});
        round_trip(&Event::Ended {
            ending: Ending { how: How::Signal { signal: 9 }, duration: 1, timed_out: true, killed: false },
        });
    }

    #[test]
    fn a_false_length_causes_no_allocation() {
        assert_eq!(decode::<Vec<Bytes>>(&[0xff, 0xff, 0xff, 0xff]), Err(Malformed));
        assert_eq!(decode::<Bytes>(&[0xff, 0xff, 0xff, 0xff, 1]), Err(Malformed));
    }

    #[test]
    fn a_frame_over_the_limit_or_of_unknown_kind_is_refused() {
        let mut bytes = [0; HEADER];
        put_header(&mut bytes, Kind::Stdout, MAX_PAYLOAD);
        assert_eq!(header(bytes), Ok((Kind::Stdout, MAX_PAYLOAD)));
        bytes[1..].copy_from_slice(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
        assert_eq!(header(bytes), Err(Malformed));
        assert_eq!(header([99, 0, 0, 0, 0]), Err(Malformed));
    }
}
