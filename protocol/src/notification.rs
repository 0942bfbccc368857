//! Notifications: messages that the service sends ahead of the result of a request, each with the id of that request.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error as _};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::command::Stream;
use crate::event::Event;
use crate::guest::Stats;
use crate::image::Progress;
use crate::method::check;
use crate::reference::order::{Declaration, declaration};

/// Defines the table of notifications: the variant, the method, and the type of the parameters.
macro_rules! notifications {
    ($($(#[doc = $summary:literal])+ $variant:ident = $method:literal: $params:ty;)+) => {
        /// A notification of the service.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Notification {
            $($(#[doc = $summary])+ $variant,)+
        }

        impl Notification {
            /// All notifications.
            pub const ALL: [Notification; [$($method),+].len()] = [$(Notification::$variant),+];

            /// Returns the `method` of the notification on the wire.
            pub const fn method(self) -> &'static str {
                match self {
                    $(Notification::$variant => $method,)+
                }
            }

            /// Returns the notification with this `method`.
            pub fn from_method(method: &str) -> Option<Notification> {
                match method {
                    $($method => Some(Notification::$variant),)+
                    _ => None,
                }
            }

            /// Returns the meaning of the notification.
            pub fn summary(self) -> &'static str {
                match self {
                    $(Notification::$variant => concat!($($summary),+).trim(),)+
                }
            }

            /// Returns the schema of the parameters, and adds the schemas that it refers to.
            pub fn params_schema(self, generator: &mut SchemaGenerator) -> Schema {
                match self {
                    $(Notification::$variant => generator.subschema_for::<$params>(),)+
                }
            }

            /// Returns the order of the parameters.
            pub(crate) fn params_declaration(self) -> Declaration {
                match self {
                    $(Notification::$variant => declaration::<$params>(),)+
                }
            }

            /// Deserialises the parameters and serialises them again.
            pub fn check_params(self, params: Value) -> Result<Value, String> {
                match self {
                    $(Notification::$variant => check::<$params>(params),)+
                }
            }
        }
    };
}

notifications! {
    /// A command runs, or the content of a file or archive may be sent. Sent first if input or output is streamed.
    Started = "sandbox.started": StartedNotification;
    /// A command, or the sandbox's own program, printed bytes.
    Output = "sandbox.output": OutputNotification;
    /// Output that a command printed while no caller was attached was not kept.
    Missed = "sandbox.missed": MissedNotification;
    /// A part of a file or an archive was read.
    Data = "sandbox.data": DataNotification;
    /// The resource usage of a sandbox was measured.
    Stats = "sandbox.stats": StatsNotification;
    /// A pull or a build made progress.
    Progress = "image.progress": ProgressNotification;
    /// A watch began. Sent first.
    Watching = "events.watching": WatchingNotification;
    /// A sandbox changed.
    Event = "events.event": EventNotification;
    /// Events between two numbers are lost.
    Gap = "events.gap": GapNotification;
}

/// Id of a request: the JSON text of a string, a number or null, exactly as the caller wrote it.
#[derive(Debug, Clone)]
pub struct RequestId(Arc<RawValue>);

impl RequestId {
    /// Returns the JSON text of the id.
    pub fn as_json(&self) -> &RawValue {
        &self.0
    }
}

impl From<Box<RawValue>> for RequestId {
    fn from(json: Box<RawValue>) -> Self {
        RequestId(json.into())
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        match json.get().starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9' | 'n')) {
            true => Ok(json.into()),
            false => Err(D::Error::custom("expected a string, a number or null")),
        }
    }
}

impl JsonSchema for RequestId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RequestId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number", "null"] })
    }
}

/// Parameters of `sandbox.started`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StartedNotification {
    /// Id of the request that the notification belongs to.
    pub id: RequestId,
    /// Id of the command or transfer, for `sandbox.input`, `sandbox.kill` and `sandbox.resize`.
    pub command_id: u64,
}

/// Parameters of `sandbox.output`. Exactly one of `text` and `base64` is present.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutputNotification {
    /// Id of the request that the notification belongs to.
    pub id: RequestId,
    /// Id of the command; left out for output of the sandbox's own program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    pub command_id: Option<u64>,
    /// Output that the bytes were printed on.
    pub stream: Stream,
    /// The bytes as text; left out if they are in base64.
    // The service leaves both forms out and appends one of them itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub text: Option<String>,
    /// The bytes in base64; left out if they are text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub base64: Option<String>,
}

/// Parameters of `sandbox.missed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MissedNotification {
    /// Id of the request that the notification belongs to.
    pub id: RequestId,
    /// Id of the command.
    pub command_id: u64,
    /// Number of bytes that were not kept.
    pub bytes: u64,
}

/// Parameters of `sandbox.data`. Exactly one of `text` and `base64` is present.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DataNotification {
    /// Id of the request that the notification belongs to.
    pub id: RequestId,
    /// Offset of the first of these bytes in the file or archive.
    pub offset: u64,
    /// The bytes as text; left out if they are in base64, as those of an archive always are.
    // The service leaves both forms out and appends one of them itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub text: Option<String>,
    /// The bytes in base64; left out if they are text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub base64: Option<String>,
}

/// Parameters of `sandbox.stats` as a notification.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatsNotification {
    /// Id of the request that the notification belongs to.
    pub id: RequestId,
    /// Resource usage of the sandbox.
    pub stats: Stats,
}

/// Parameters of `image.progress`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgressNotification {
    /// Id of the request that the notification belongs to.
    pub id: RequestId,
    /// Progress of the pull or build.
    pub progress: Progress,
}

/// Parameters of `events.watching`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchingNotification {
    /// Id of the request that the notification belongs to.
    pub id: RequestId,
    /// Number after which every event is sent. A watch that ends before its first event is continued from it.
    pub after: u64,
}

/// Parameters of `events.event`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventNotification {
    /// Id of the request that the notification belongs to.
    pub id: RequestId,
    /// The event.
    pub event: Event,
}

/// Parameters of `events.gap`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GapNotification {
    /// Id of the request that the notification belongs to.
    pub id: RequestId,
    /// Number of the last event before the gap.
    pub after: u64,
    /// Number of the first event after the gap.
    pub resumes_at: u64,
}
