/** How far the output of a job was read. Pure. */

export interface LogPlace {
  serial: number;
  /** 0: no piece was read. */
  attempt: number;
  next: number;
}

export interface LogPiece {
  computeJobSerial: number;
  attempt: number;
  offset: number;
  nextOffset: number;
  dropped: number;
  text: string;
  end: boolean;
}

export const NO_PLACE: LogPlace = { serial: 0, attempt: 0, next: 0 };

export const placeAfter = (piece: LogPiece): LogPlace => ({
  serial: piece.computeJobSerial,
  attempt: piece.attempt,
  next: piece.nextOffset,
});

/** Return whether the piece belongs to another run or attempt than what was read. */
export const isOther = (place: LogPlace, piece: LogPiece): boolean =>
  piece.computeJobSerial !== place.serial || (place.attempt > 0 && piece.attempt !== place.attempt);

/** Return whether the piece was read before: a stream that is resumed may repeat one. */
export const isRepeated = (place: LogPlace, piece: LogPiece): boolean =>
  !isOther(place, piece) && piece.nextOffset <= place.next && !piece.end;
