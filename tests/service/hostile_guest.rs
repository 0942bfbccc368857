//! Tests of a hostile guest that knows init's secret and plays init: it can deceive its own chat, and no other.

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::support::{Service, chat, kind, request};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};
use sandbox_init::codec::Bytes;
use sandbox_init::wire::{
    Entry, Event, Facts, FileKind, HEADER, Hello, Kind, MAX_PAYLOAD, SECRET_LENGTH, VERSION, header, put_data,
    put_message,
};
use serde_json::{Value, json};

const INVALID_RESPONSE: &str = "the sandbox's init sent an invalid response";

/// A sandbox whose init is replaced by an impostor. The impostor answers every request with the same bytes.
struct Impostor {
    service: Service,
    chat: String,
}

impl Impostor {
    async fn answering(answer: impl Fn(&mut UnixStream) + Send + 'static) -> Self {
        let service = Service::start().await;
        let mut caller = service.connect().await;
        let chat = chat();
        let created = caller.ask(service.create(1, &chat)).await;
        let session = created["result"]["session_id"].as_str().expect("a session").to_owned();
        let params = json!({ "chat_id": chat, "command": "echo $PPID" });
        let ran = caller.ask(request(2, "sandbox.exec", &params)).await;
        let init: i32 = ran["result"]["stdout"]["text"].as_str().expect("init").trim().parse().expect("a number");
        kill_process(Pid::from_raw(init).expect("a process"), Signal::KILL).expect("killed");

        let place = PathBuf::from(service.socket.parent().expect("a place")).join("state/sandboxes").join(session);
        let secret: [u8; SECRET_LENGTH] =
            std::fs::read(place.join("secret")).expect("a secret").try_into().expect("a secret");
        let mut link = UnixStream::connect(place.join("run/socket")).expect("connected");
        let mut hello = Vec::new();
        put_message(&mut hello, Kind::Hello, &Hello { version: VERSION, secret });
        link.write_all(&hello).expect("sent");
        std::thread::spawn(move || {
            while let Some(mut stream) = receive_stream(&link) {
                let mut start = [0; HEADER];
                stream.read_exact(&mut start).expect("a request");
                let (_, length) = header(start).expect("a frame");
                stream.read_exact(&mut vec![0; length]).expect("a request");
                answer(&mut stream);
            }
        });
        Self { service, chat }
    }

    async fn ask(&self, method: &str, mut params: Value) -> Value {
        params["chat_id"] = json!(self.chat);
        self.service.connect().await.ask(request(1, method, &params)).await
    }
}

fn receive_stream(link: &UnixStream) -> Option<UnixStream> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    recvmsg(link, &mut [IoSliceMut::new(&mut byte)], &mut attached, RecvFlags::CMSG_CLOEXEC).ok()?;
    let rights = attached.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    rights.map(UnixStream::from)
}

fn facts() -> Facts {
    Facts { kind: FileKind::File {}, size: 1, mode: 0o644, user: 0, group: 0, modified: 0, target: None }
}

#[tokio::test]
async fn a_file_without_end_is_not_kept() {
    let impostor = Impostor::answering(|stream| {
        let mut frames = Vec::new();
        put_message(&mut frames, Kind::Event, &Event::Facts { facts: facts() });
        let _ = stream.write_all(&frames);
        let mut frame = Vec::new();
        put_data(&mut frame, Kind::Data, &vec![b'x'; MAX_PAYLOAD]);
        while stream.write_all(&frame).is_ok() {}
    })
    .await;
    let answer = impostor.ask("sandbox.read_file", json!({ "path": "/f" })).await;
    assert_eq!(answer["error"]["message"], INVALID_RESPONSE);
}

#[tokio::test]
async fn a_directory_of_endless_names_is_cut() {
    let impostor = Impostor::answering(|stream| {
        let entry = Entry { name: Bytes(vec![b'x'; MAX_PAYLOAD / 2]), facts: facts() };
        let mut frame = Vec::new();
        put_message(&mut frame, Kind::Event, &Event::Entries { entries: vec![entry] });
        while stream.write_all(&frame).is_ok() {}
    })
    .await;
    let answer = impostor.ask("sandbox.list_files", json!({ "path": "/d" })).await;
    assert_eq!(answer["result"]["truncated"], true, "{}", answer["error"]);
    assert!(answer["result"]["files"].as_array().expect("files").len() <= 33);
}

#[tokio::test]
async fn an_invalid_response_ends_only_its_guest_stream() {
    for invalid_response in
        [vec![0xff; 64], vec![Kind::Event as u8, 0xff, 0xff, 0xff, 0xff], vec![Kind::Event as u8, 1, 0, 0, 0, 99]]
    {
        let impostor = Impostor::answering(move |stream| {
            let _ = stream.write_all(&invalid_response);
        })
        .await;
        for (method, params) in [
            ("sandbox.exec", json!({ "command": "true" })),
            ("sandbox.commands", json!({})),
            ("sandbox.stat_file", json!({ "path": "/f" })),
            ("sandbox.write_file", json!({ "path": "/f", "text": "x" })),
        ] {
            let answer = impostor.ask(method, params).await;
            assert_eq!(kind(&answer), "guest_unreachable", "{method}");
            assert_eq!(answer["error"]["message"], INVALID_RESPONSE, "{method}");
        }
        let mut caller = impostor.service.connect().await;
        let other = chat();
        caller.ask(impostor.service.create(1, &other)).await;
        let params = json!({ "chat_id": other, "command": "exit 5" });
        assert_eq!(caller.ask(request(2, "sandbox.exec", &params)).await["result"]["exit_code"], 5, "another chat");
    }
}
