//! Files and directory trees in the guest. A path is one as a command in the sandbox sees it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::command::Content;
use crate::time::Time;
use crate::words::words;

/// Parameters of a method that takes only a path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Path of the file or directory in the sandbox, at most 4095 bytes. A relative path counts from the working
    /// directory of the image.
    pub path: String,
}

/// Parameters of `sandbox.read_file`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadFileParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Path of a regular file in the sandbox, as for `sandbox.stat_file`. A symbolic link is followed.
    pub path: String,
    /// Offset of the first byte to read. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Most bytes to read, at most 16777216 unless the content is streamed. Default: 16777216, and unlimited if the
    /// content is streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// Whether the content is sent in notifications instead of in the result; for files of any size. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

/// Result of `sandbox.read_file`: the file, and the bytes that were read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadFileResult {
    /// Number of bytes that were read.
    pub bytes: u64,
    /// The file.
    #[serde(flatten)]
    pub file: File,
    /// The bytes that were read.
    // The service leaves the content out and writes it piece by piece behind the other fields.
    #[serde(flatten)]
    #[schemars(required)]
    pub content: Option<Content>,
}

/// Parameters of `sandbox.write_file`. Exactly one of `text`, `base64` and `follows` is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFileParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Path of the file in the sandbox, as for `sandbox.stat_file`. A symbolic link is followed.
    pub path: String,
    /// Content of the file, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Content of the file, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// Whether the content follows with `sandbox.input`, to the `command_id` of `sandbox.started`, until one with
    /// `end`; for files of any size. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<bool>,
    /// Permissions of the file. Default: those of the replaced file, else 420 (octal 644).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4095))]
    pub mode: Option<u32>,
    /// Whether to make the missing directories of the path. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parents: Option<bool>,
}

/// Parameters of `sandbox.make_directory`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeDirectoryParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Path of the directory in the sandbox, as for `sandbox.stat_file`.
    pub path: String,
    /// Permissions of the directory, less those that the umask of the sandbox removes. Default: 493 (octal 755).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4095))]
    pub mode: Option<u32>,
    /// Whether to make the missing directories of the path, and to accept a directory that exists. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parents: Option<bool>,
}

/// Parameters of `sandbox.remove_file`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveFileParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Path of the file, symbolic link or directory in the sandbox, as for `sandbox.stat_file`. A symbolic link is not
    /// followed.
    pub path: String,
    /// Whether to remove a directory with its content. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
}

/// Parameters of `sandbox.move_file`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFileParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Path of the file or directory in the sandbox, as for `sandbox.stat_file`.
    pub from: String,
    /// New path with the name, or a directory to move the file or directory into.
    pub to: String,
}

/// Parameters of `sandbox.write_tree`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteTreeParams {
    /// UUID of the chat that has the sandbox.
    pub chat_id: String,
    /// Path of the directory in the sandbox that the archive is unpacked into, as for `sandbox.stat_file`.
    pub path: String,
    /// Whether to make the directory, and those above it, where they are missing. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parents: Option<bool>,
}

/// Result of `sandbox.read_tree` and `sandbox.write_tree`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeResult {
    /// Number of files, directories and links in the archive. When written, existing directories count too.
    pub entries: u64,
    /// Bytes in all files together.
    pub bytes: u64,
    /// Number of entries that were left out: sockets, pipes, devices, and entries that were replaced while they were
    /// read.
    pub skipped: u64,
}

/// A file, directory or other entry of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct File {
    /// Name of the entry in its directory, with replacement characters for bytes that are not UTF-8; only in a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub name: Option<String>,
    /// Kind of the entry.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permissions, up to 4095 (octal 7777).
    pub mode: u32,
    /// Id of the owning user.
    pub uid: u32,
    /// Id of the owning group.
    pub gid: u32,
    /// When the content was last modified.
    pub modified_at: Time,
    /// Target of a symbolic link; null for other entries.
    pub target: Option<String>,
}

/// Result of `sandbox.list_files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListFilesResult {
    /// Entries of the directory without `.` and `..`, in no particular order.
    pub files: Vec<File>,
    /// Whether entries are missing, because there are more than 10000 or their names are unusually long.
    pub truncated: bool,
}

words! {
    /// Kind of an entry of a file system.
    enum FileKind {
        /// Regular file.
        File = "file",
        /// Directory.
        Directory = "directory",
        /// Symbolic link.
        Symlink = "symlink",
        /// Socket, pipe or device.
        Other = "other",
    }

    /// Why an operation on a file failed: the `reason` of a `file_error`.
    enum FileReason {
        /// The file, or a directory of its path, does not exist.
        NotFound = "not_found",
        /// The user of the sandbox lacks the permission.
        PermissionDenied = "permission_denied",
        /// The file system is read-only.
        ReadOnly = "read_only",
        /// The file exists already.
        Exists = "exists",
        /// The path is a directory, and must not be one.
        IsADirectory = "is_a_directory",
        /// The path is not a directory, and must be one.
        NotADirectory = "not_a_directory",
        /// The directory is not empty.
        NotEmpty = "not_empty",
        /// The file system, or the user's quota, is full.
        NoSpace = "no_space",
        /// Another reason, which the message states.
        Other = "other",
    }
}
