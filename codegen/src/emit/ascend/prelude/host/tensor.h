// Host prelude for AscendC, part 2: where the core is, tensors, events and flags.

enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };

namespace AscendC {

inline void InitSocState(KILN_LINE) { kiln_do(1, line); }
// Ends the run: here a read of memory that belongs to nobody, which is reported.
inline void Trap(KILN_LINE) { kiln_do(8, line, (uint64_t)0, (uint64_t)4); }
inline int64_t GetBlockNum() { return kiln_lane->blocks; }
inline int64_t GetSubBlockIdx() { return kiln_lane->core == 2 ? 1 : 0; }
// Of the block on the cube core; vector cores of a mixed kernel are numbered through.
inline int64_t GetBlockIdx()
{
    if (kiln_lane->mixed && kiln_lane->core != 0) return 2 * (int64_t)kiln_lane->block + GetSubBlockIdx();
    return kiln_lane->block;
}

enum class TPosition { GM, A1, A2, B1, B2, CO1, VECIN, VECOUT, VECCALC };
// L1, L0A, L0B, L0C, UB.
constexpr uint64_t kiln_space(TPosition p)
{
    return p == TPosition::A1 || p == TPosition::B1 ? 0
           : p == TPosition::A2                     ? 1
           : p == TPosition::B2                     ? 2
           : p == TPosition::CO1                    ? 3
                                                    : 4;
}

template <class T> class GlobalTensor {
public:
    void SetGlobalBuffer(T* base) { at = base; }
    void SetGlobalBuffer(T* base, uint64_t) { at = base; }
    GlobalTensor operator[](uint64_t elements) const
    {
        GlobalTensor t;
        t.at = (T*)((uint64_t)at + elements * sizeof(T));
        return t;
    }
    T GetValue(uint64_t i, KILN_LINE) const
    {
        return kiln_argument<T>(kiln_do(8, line, (uint64_t)at + i * sizeof(T), sizeof(T)));
    }
    const T* GetPhyAddr() const { return at; }
    uint64_t kiln_address() const { return (uint64_t)at; }

private:
    T* at = nullptr;
};

template <class T> class LocalTensor {
public:
    LocalTensor() = default;
    LocalTensor(TPosition position, uint32_t address, uint32_t elements, KILN_LINE)
        : place(kiln_space(position) << 32 | address), bytes((uint64_t)elements * sizeof(T))
    {
        kiln_do(2, line, place, bytes);
    }
    LocalTensor operator[](uint32_t elements) const
    {
        const uint64_t by = (uint64_t)elements * sizeof(T);
        LocalTensor t;
        t.place = place + by;
        t.bytes = by < bytes ? bytes - by : 0;
        return t;
    }
    // Nothing lies there: instructions take such addresses, the text cannot.
    T* GetPhyAddr(KILN_LINE) const
    {
        kiln_last_line = line;
        return (T*)(((uint64_t)1 << 44) + place);
    }
    T GetValue(uint32_t i, KILN_LINE) const
    {
        return kiln_argument<T>(kiln_do(9, line, place, bytes, (uint64_t)i * sizeof(T), sizeof(T)));
    }
    void SetValue(uint32_t i, T value, KILN_LINE) const
    {
        kiln_do(21, line, place, bytes, (uint64_t)i * sizeof(T), sizeof(T), kiln_bits(value));
    }
    uint32_t GetSize() const { return (uint32_t)(bytes / sizeof(T)); }
    template <class U> LocalTensor<U> ReinterpretCast() const
    {
        LocalTensor<U> t;
        t.place = place;
        t.bytes = bytes;
        return t;
    }

    uint64_t place = 0, bytes = 0;
};

// ---- events ------------------------------------------------------------------------------------------
enum class HardEvent {
    MTE2_MTE1, MTE1_MTE2, MTE1_M, M_MTE1, M_FIX, FIX_M, MTE2_V, V_MTE2, V_MTE3, MTE3_V, V_S, S_V, MTE2_S, S_MTE2,
    MTE3_S, S_MTE3, MTE2_MTE3, MTE3_MTE2, FIX_MTE2, MTE2_FIX
};
struct kiln_pair {
    pipe_t from, to;
};
constexpr kiln_pair kiln_pipes(HardEvent e)
{
    constexpr kiln_pair all[] = {
        {PIPE_MTE2, PIPE_MTE1}, {PIPE_MTE1, PIPE_MTE2}, {PIPE_MTE1, PIPE_M}, {PIPE_M, PIPE_MTE1}, {PIPE_M, PIPE_FIX},
        {PIPE_FIX, PIPE_M}, {PIPE_MTE2, PIPE_V}, {PIPE_V, PIPE_MTE2}, {PIPE_V, PIPE_MTE3}, {PIPE_MTE3, PIPE_V},
        {PIPE_V, PIPE_S}, {PIPE_S, PIPE_V}, {PIPE_MTE2, PIPE_S}, {PIPE_S, PIPE_MTE2}, {PIPE_MTE3, PIPE_S},
        {PIPE_S, PIPE_MTE3}, {PIPE_MTE2, PIPE_MTE3}, {PIPE_MTE3, PIPE_MTE2}, {PIPE_FIX, PIPE_MTE2},
        {PIPE_MTE2, PIPE_FIX}};
    return all[(int)e];
}
template <HardEvent E> inline void SetFlag(int32_t id, KILN_LINE)
{
    kiln_do(3, line, kiln_pipes(E).from, kiln_pipes(E).to, id);
}
template <HardEvent E> inline void WaitFlag(int32_t id, KILN_LINE)
{
    kiln_do(4, line, kiln_pipes(E).from, kiln_pipes(E).to, id);
}
template <pipe_t P> inline void PipeBarrier(KILN_LINE)
{
    static_assert(P == PIPE_V || P == PIPE_M || P == PIPE_ALL, "a barrier of V, of M or of all pipes");
    kiln_do(5, line, P);
}
template <uint8_t MODE, pipe_t P> inline void CrossCoreSetFlag(uint16_t id, KILN_LINE)
{
    static_assert(MODE == 2 || (MODE == 4 && __NPU_ARCH__ == 3510), "mode 2, or mode 4 on 3510");
    kiln_do(6, line, MODE, P, id);
}
template <uint8_t MODE, pipe_t P> inline void CrossCoreWaitFlag(uint16_t id, KILN_LINE)
{
    static_assert(MODE == 2 || (MODE == 4 && __NPU_ARCH__ == 3510), "mode 2, or mode 4 on 3510");
    kiln_do(7, line, MODE, P, id);
}

} // namespace AscendC
