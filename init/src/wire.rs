//! The messages, and the frames they travel in.
//!
//! A frame is a kind (one byte), a length (four), and that many bytes. The service opens a conversation with one
//! [`Request`]; what may follow depends on it:
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
//! Instead of any of its messages init may say `Event::Failed`, which ends the conversation. A `Run` whose conversation
//! is closed by the service goes on; it can be attached to again. A `Run` that is closed before init has begun with it is
//! never started. A service that gives up while it waits for `Event::Started` sends `Control::Kill` before it closes the
//! conversation, for the case that init has just begun.

use crate::codec::{Bytes, Malformed, Value};
use crate::messages;

/// Raised with every change that the other side would not understand.
pub const VERSION: u8 = 1;

/// The longest payload of a frame, in either direction.
pub const MAX_PAYLOAD: usize = 256 * 1024;

/// Kind and length.
pub const HEADER: usize = 5;

pub const SECRET_LENGTH: usize = 32;

/// The secret in hexadecimal. Init takes it, and [`SOCKET_VARIABLE`], out of what its children see.
pub const SECRET_VARIABLE: &str = "SANDBOXD_INIT_SECRET";

/// The path of the service's socket in the sandbox.
pub const SOCKET_VARIABLE: &str = "SANDBOXD_INIT_SOCKET";

/// Set in the environment of an init that is to start nothing before it is bound; see [`Request::Bind`].
pub const WAIT_VARIABLE: &str = "SANDBOXD_INIT_WAIT";

/// In the environment of every command and of all that it starts: finds what ran away from its process group.
pub const COMMAND_VARIABLE: &str = "SANDBOXD_COMMAND";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Hello = 1,
    Request = 2,
    /// Bytes of a file or of standard input.
    Data = 3,
    /// No more data.
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

/// The kind and length of the frame that starts with these bytes.
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

/// A frame with bytes as they are.
pub fn put_data(out: &mut Vec<u8>, kind: Kind, bytes: &[u8]) {
    let mut header = [0; HEADER];
    put_header(&mut header, kind, bytes.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(bytes);
}

/// A frame with a message in it.
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
        /// Chosen by the service; never used twice in a sandbox.
        pub id: u64,
        pub arguments: Vec<Bytes>,
        /// On top of the sandbox's own.
        pub environment: Vec<(Bytes, Bytes)>,
        /// The sandbox's own if absent.
        pub directory: Option<Bytes>,
        /// In milliseconds; after it, all that the command has started is killed.
        pub timeout: Option<u64>,
        pub terminal: Option<Size>,
        /// Whether standard input follows. If not, it is empty.
        pub input: bool,
        /// Nobody waits for it: the service ends the conversation once it has started.
        pub detached: bool,
    }

    pub struct Size {
        pub rows: u16,
        pub columns: u16,
    }

    pub enum Request {
        Run { command: Run, } = 1,
        /// What a command prints from now on, after what was kept while nobody listened.
        Attach { id: u64, } = 2,
        Commands {} = 3,
        Signal { id: u64, signal: i32, } = 4,
        /// Ends all that the command has started, at once.
        Kill { id: u64, } = 5,
        /// A regular file, from `offset`, at most `length` bytes.
        Read { path: Bytes, offset: u64, length: u64, } = 6,
        /// Replaces the file at once when all of it has arrived, or not at all.
        Write { path: Bytes, mode: Option<u32>, parents: bool, } = 7,
        Facts { path: Bytes, } = 8,
        ReadDirectory { path: Bytes, } = 9,
        MakeDirectory { path: Bytes, mode: Option<u32>, parents: bool, } = 10,
        Remove { path: Bytes, recursive: bool, } = 11,
        Move { from: Bytes, to: Bytes, } = 12,
        MakeLink { path: Bytes, target: Bytes, } = 13,
        /// What the sandbox uses.
        Usage {} = 14,
        /// A directory with all that is in it, as an archive; see [`crate::tree`].
        ReadTree { path: Bytes, } = 15,
        /// Puts what is in an archive into a directory.
        WriteTree { path: Bytes, parents: bool, } = 16,
        /// To an init that waits: starts the program, with this on top of the sandbox's own environment, of which it is
        /// part from now on.
        Bind { environment: Vec<(Bytes, Bytes)>, } = 17,
        /// Whether init waits to be bound; it is an error if it does not.
        Waiting {} = 18,
        /// Whether the directory at this path is that one; it is an error if it is not.
        Mounted { path: Bytes, device: u64, inode: u64, } = 19,
        /// Answered when the command has ended.
        Await { id: u64, } = 21,
        /// To an init that waits: starts the program as if there had been no wait. A program that cannot be started ends
        /// init, with the exit code of a shell.
        Begin {} = 20,
    }

    /// From the service, to a command that is attached.
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
        /// So many bytes of output were not kept while nobody listened.
        Missed { bytes: u64, } = 8,
        Usage { usage: Usage, } = 9,
        /// All of it has been read or written.
        Tree { entries: u64, bytes: u64, skipped: u64, } = 10,
    }

    /// What cannot be found out is absent, and so is a limit that there is not.
    #[derive(Default)]
    pub struct Usage {
        /// When it was looked at, in microseconds of a clock that only goes on.
        pub at: u64,
        /// In microseconds, of all CPUs together.
        pub cpu: Option<u64>,
        /// In bytes, without what the kernel only keeps as long as nobody needs the room.
        pub memory: Option<u64>,
        pub memory_limit: Option<u64>,
        /// And threads.
        pub processes: Option<u64>,
        pub process_limit: Option<u64>,
        /// Bytes, over all interfaces but loopback.
        pub received: Option<u64>,
        pub sent: Option<u64>,
        /// Bytes, to disks.
        pub written: Option<u64>,
    }

    pub struct Ending {
        pub how: How,
        /// Of the command's life, in microseconds.
        pub duration: u64,
        pub timed_out: bool,
        pub killed: bool,
    }

    pub enum How {
        Code { code: i32, } = 1,
        Signal { signal: i32, } = 2,
        /// By the kernel, which found no memory within the sandbox's limit: with `SIGKILL`.
        OutOfMemory {} = 3,
        /// With this code, as a shell does after the kernel has killed what it ran for want of memory.
        CodeOutOfMemory { code: i32, } = 4,
    }

    pub struct Failure {
        /// As in `errno`, or 0 where it is not the system's.
        pub errno: i32,
        pub message: Bytes,
    }

    pub struct Facts {
        pub kind: FileKind,
        pub size: u64,
        pub mode: u32,
        pub user: u32,
        pub group: u32,
        /// In nanoseconds since 1970.
        pub modified: i64,
        /// Of a symbolic link.
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
        /// Since it was started, in microseconds.
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
    fn a_length_that_lies_allocates_nothing() {
        assert_eq!(decode::<Vec<Bytes>>(&[0xff, 0xff, 0xff, 0xff]), Err(Malformed));
        assert_eq!(decode::<Bytes>(&[0xff, 0xff, 0xff, 0xff, 1]), Err(Malformed));
    }

    #[test]
    fn a_frame_over_the_limit_or_of_no_kind_is_refused() {
        let mut bytes = [0; HEADER];
        put_header(&mut bytes, Kind::Stdout, MAX_PAYLOAD);
        assert_eq!(header(bytes), Ok((Kind::Stdout, MAX_PAYLOAD)));
        bytes[1..].copy_from_slice(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
        assert_eq!(header(bytes), Err(Malformed));
        assert_eq!(header([99, 0, 0, 0, 0]), Err(Malformed));
    }
}
